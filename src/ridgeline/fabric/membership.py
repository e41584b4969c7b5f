"""Other members for a group: `shrink` goes on without ranks that ended, `grow` takes new ones in.

The survivors connect to the lowest rank that is not known to have ended. It waits until all others have come that no
survivor reports as ended, or until most of the time is over, and tells them who is left. If it ends meanwhile, the
others turn to the next one. For `grow` all ranks and the new ones connect to rank 0.
"""

from __future__ import annotations

import secrets
import socket
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from ridgeline.errors import FabricError
from ridgeline.fabric.config import FabricConfig
from ridgeline.fabric.handshake import HandshakeError, read_secret
from ridgeline.fabric.hosts import Address, get_host_identity, parse_address
from ridgeline.fabric.meeting import (
    SHM,
    Arrival,
    Listener,
    Meeting,
    Member,
    NetworkWorld,
    connect,
    describe_self,
    find_difference,
    open_listener,
    parse_member_address,
)
from ridgeline.fabric.rendezvous import RendezvousServer, World, choose_arena_bytes, join_world

SHARE_OF_TIME = 0.8  # of a timeout, after which the coordinator no longer waits for ranks that may have ended
CONNECT_S = 2.0  # for the connection to a coordinator, which may have ended without a sign


def make_world(meeting: Meeting, deadline: float) -> World | NetworkWorld:
    """Shared memory if all ranks are on one host and the settings allow it, else connections."""
    config = meeting.config
    if not meeting.is_on_one_host or config.transport not in ("auto", SHM):
        return NetworkWorld(meeting, deadline)
    name, timeout = f"ridgeline-fabric-{meeting.session}", max(0.01, deadline - time.monotonic())
    server = None
    if meeting.rank == 0:
        server = RendezvousServer(name, meeting.size, choose_arena_bytes(config.arena_bytes), timeout)
    try:
        return replace(join_world(name, meeting.rank, meeting.size, timeout), meeting=meeting)
    finally:
        if server is not None:
            server.close()


def make_local_meeting(world: World, config: FabricConfig) -> Meeting:
    """The meeting of ranks that found each other on this host, without a network."""
    host, name = get_host_identity(), socket.gethostname()
    members = []
    for rank, pid in enumerate(world.pids):
        local = f"@{world.name}-{rank}"
        members.append(Member(host, name, pid, local, local, 0))
    listener = Listener(world.secret, [Address(members[world.rank].local, 0)])
    return Meeting(world.rank, tuple(members), world.name, world.secret, listener, config)


def shrink_meeting(meeting: Meeting, ended: Sequence[int], timeout: float) -> Meeting:
    """Agree with the other survivors on who is left; raises FabricError if these are fewer than two.

    ended  the ranks that this rank knows or believes to have ended
    """
    deadline = time.monotonic() + timeout
    known = set(ended) - {meeting.rank}
    while True:
        left = [rank for rank in range(meeting.size) if rank not in known]
        if len(left) < 2:
            raise FabricError(f"shrink: rank {meeting.rank} is the only one left of {meeting.size}; start ranks again.")
        if left[0] == meeting.rank:
            return _lead_shrink(meeting, known, deadline, timeout)
        answer = _ask_to_stay(meeting, left[0], known, deadline)
        if answer is not None:
            ranks = [int(rank) for rank in answer["ranks"]]
            return replace(meeting.choose(ranks, 0), session=str(answer["session"]))
        known.add(left[0])
        if time.monotonic() >= deadline:
            raise FabricError(f"shrink: the other ranks did not agree with rank {meeting.rank} within {timeout:g} s.")


def _lead_shrink(meeting: Meeting, known: set[int], deadline: float, timeout: float) -> Meeting:
    arrivals: dict[int, Arrival] = {}
    last = deadline - (1 - SHARE_OF_TIME) * timeout
    while any(r not in known and r not in arrivals for r in range(meeting.size) if r != meeting.rank):
        arrival = _take(meeting, "shrink", last)
        if arrival is None:
            break
        rank = arrival.request.get("rank")
        if not isinstance(rank, int) or not 0 <= rank < meeting.size or rank == meeting.rank:
            arrival.refuse("shrink: this is no rank of the communicator.")
            continue
        arrivals[rank] = arrival
        known |= {r for r in arrival.request.get("ended", []) if isinstance(r, int)}
    ranks = sorted([meeting.rank, *arrivals])
    if len(ranks) < 2:
        raise FabricError(f"shrink: no other rank of {meeting.size} came to rank {meeting.rank}; start ranks again.")
    session = secrets.token_hex(16)
    for arrival in arrivals.values():
        arrival.answer({"ranks": ranks, "session": session})
        arrival.socket.close()
    return replace(meeting.choose(ranks, 0), session=session)


def _ask_to_stay(meeting: Meeting, coordinator: int, known: set[int], deadline: float) -> dict[str, Any] | None:
    """The answer of the coordinator; None if it has ended."""
    request = {"purpose": "shrink", "session": meeting.session, "rank": meeting.rank, "ended": sorted(known)}
    try:
        connection = connect(_find_address(meeting, coordinator), meeting.secret, request, deadline, CONNECT_S)
        with connection.socket:
            return connection.read_answer(deadline)
    except HandshakeError as error:
        raise FabricError(str(error)) from None
    except (FabricError, OSError):
        return None


def grow_meeting(meeting: Meeting, count: int, timeout: float) -> Meeting:
    """Take `count` new ranks in, which call `join_meeting`; raises FabricError if they do not come."""
    deadline = time.monotonic() + timeout
    if meeting.rank:
        request = {"purpose": "grow", "session": meeting.session, "rank": meeting.rank, "count": count}
        try:
            connection = connect(_find_address(meeting, 0), meeting.secret, request, deadline)
            with connection.socket:
                answer = connection.read_answer(deadline)
        except (HandshakeError, OSError) as error:
            text = f"rank 0 did not answer within {timeout:g} s" if isinstance(error, OSError) else str(error)
            raise FabricError(f"grow: {text}") from None
        return _read_table(meeting, answer)
    joined: list[tuple[Arrival, Member]] = []
    arrivals: dict[int, Arrival] = {}
    try:
        while len(arrivals) < meeting.size - 1 or len(joined) < count:
            arrival = meeting.listener.take(lambda request: _is_for_growth(request, meeting), deadline)
            if arrival is None:
                missing = [str(r) for r in range(1, meeting.size) if r not in arrivals]
                text = f"the ranks {', '.join(missing)} did not call it" if missing else ""
                text = text or f"{len(joined)} of {count} new ranks came to {meeting.members[0].address}"
                raise FabricError(f"grow: {text} within {timeout:g} s; the communicator goes on without new ranks.")
            if arrival.request["purpose"] == "join":
                _admit(arrival, meeting, joined, count)
            elif arrival.request.get("count") != count:
                text = (
                    f"grow: rank 0 takes {count} in, rank {arrival.request.get('rank')} {arrival.request.get('count')}."
                )
                arrival.refuse(text)
                raise FabricError(text)
            else:
                arrivals[int(arrival.request["rank"])] = arrival
    except FabricError as error:
        for arrival in (*arrivals.values(), *(one for one, _ in joined)):
            arrival.refuse(str(error))
        raise
    table = (*meeting.members, *(member for _, member in joined))
    session = secrets.token_hex(16)
    newcomers = {meeting.size + k: arrival for k, (arrival, _) in enumerate(joined)}
    for rank, arrival in {**arrivals, **newcomers}.items():
        arrival.answer({"members": [asdict(member) for member in table], "session": session, "rank": rank})
        arrival.socket.close()
    return replace(meeting, members=table, session=session)


def join_meeting(address: str, config: FabricConfig, timeout: float) -> Meeting:
    """Become a rank of a communicator that grows."""
    deadline, at, secret = time.monotonic() + timeout, parse_address(address, "address"), read_secret()
    listener = open_listener(config, secret, at)
    try:
        me = describe_self(config, listener)
        try:
            connection = connect(at, secret, {"purpose": "join", "member": asdict(me)}, deadline)
            with connection.socket:
                answer = connection.read_answer(deadline)
        except HandshakeError as error:
            raise FabricError(f"join: {error}") from None
        except TimeoutError:
            raise FabricError(f"join: the ranks at {address} did not call grow within {timeout:g} s.") from None
        except OSError:
            raise FabricError(f"join: the rank at {address} ended.") from None
        return _read_table(Meeting(0, (me,), "", secret, listener, config), answer)
    except BaseException:
        listener.close()
        raise


def _admit(arrival: Arrival, meeting: Meeting, joined: list[tuple[Arrival, Member]], count: int) -> None:
    try:
        member = Member(**arrival.request["member"])
    except (KeyError, TypeError):
        arrival.refuse("the request is not complete; install one release everywhere.")
        return
    problem = find_difference(meeting.members[0], member, "the new rank")
    if problem is not None or len(joined) >= count:
        arrival.refuse(problem or f"{count} other ranks have been taken in.")
        return
    joined.append((arrival, member))


def _read_table(meeting: Meeting, answer: dict[str, Any]) -> Meeting:
    members = tuple(Member(**member) for member in answer["members"])
    return replace(meeting, rank=int(answer["rank"]), members=members, session=str(answer["session"]))


def _is_for_growth(request: dict[str, Any], meeting: Meeting) -> bool:
    if request.get("purpose") == "join":
        return True
    return request.get("purpose") == "grow" and request.get("session") == meeting.session


def _take(meeting: Meeting, purpose: str, deadline: float) -> Arrival | None:
    return meeting.listener.take(
        lambda request: request.get("purpose") == purpose and request.get("session") == meeting.session, deadline
    )


def _find_address(meeting: Meeting, rank: int) -> Address:
    member = meeting.members[rank]
    if member.host == meeting.members[meeting.rank].host:
        return Address(member.local, 0)
    return parse_member_address(member.address)
