"""Other members for a group: `shrink` goes on without ranks that ended, `grow` takes new ones in.

The survivors connect to the lowest rank that is not known to have ended. It waits until all others have come that no
survivor reports as ended, or until most of the time is over, and tells them which ranks are left. If it ends
meanwhile, the others turn to the next one. For `grow` all ranks and the new ones connect to rank 0.
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
from ridgeline.fabric.network_rendezvous import (
    SHM,
    Arrival,
    Listener,
    Member,
    Membership,
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


def make_world(membership: Membership, deadline: float) -> World | NetworkWorld:
    """Shared memory if all ranks are on one host and the settings allow it, else connections."""
    config = membership.config
    if not membership.is_on_one_host or config.transport not in ("auto", SHM):
        return NetworkWorld(membership, deadline)
    name, timeout = f"ridgeline-fabric-{membership.session}", max(0.01, deadline - time.monotonic())
    server = None
    if membership.rank == 0:
        server = RendezvousServer(name, membership.size, choose_arena_bytes(config.arena_bytes), timeout)
    try:
        return replace(join_world(name, membership.rank, membership.size, timeout), membership=membership)
    finally:
        if server is not None:
            server.close()


def make_local_membership(world: World, config: FabricConfig) -> Membership:
    """The membership of ranks that found each other on this host, without a network."""
    host, name = get_host_identity(), socket.gethostname()
    members = []
    for rank, pid in enumerate(world.pids):
        local = f"@{world.name}-{rank}"
        members.append(Member(host, name, pid, local, local, 0))
    listener = Listener(world.secret, [Address(members[world.rank].local, 0)])
    return Membership(world.rank, tuple(members), world.name, world.secret, listener, config)


def shrink_membership(membership: Membership, ended: Sequence[int], timeout: float) -> Membership:
    """Agree with the other survivors on the ranks that are left; raises FabricError if these are fewer than two.

    ended  the ranks that this rank knows or believes to have ended
    """
    deadline = time.monotonic() + timeout
    known = set(ended) - {membership.rank}
    while True:
        left = [rank for rank in range(membership.size) if rank not in known]
        if len(left) < 2:
            raise FabricError(
                f"shrink: rank {membership.rank} is the only one left of {membership.size}; start ranks again."
            )
        if left[0] == membership.rank:
            return _lead_shrink(membership, known, deadline, timeout)
        answer = _ask_to_stay(membership, left[0], known, deadline)
        if answer is not None:
            ranks = [int(rank) for rank in answer["ranks"]]
            return replace(membership.choose(ranks, 0), session=str(answer["session"]))
        known.add(left[0])
        if time.monotonic() >= deadline:
            raise FabricError(
                f"shrink: the other ranks did not agree with rank {membership.rank} within {timeout:g} s."
            )


def _lead_shrink(membership: Membership, known: set[int], deadline: float, timeout: float) -> Membership:
    arrivals: dict[int, Arrival] = {}
    last = deadline - (1 - SHARE_OF_TIME) * timeout
    while any(r not in known and r not in arrivals for r in range(membership.size) if r != membership.rank):
        arrival = _take(membership, "shrink", last)
        if arrival is None:
            break
        rank = arrival.request.get("rank")
        if not isinstance(rank, int) or not 0 <= rank < membership.size or rank == membership.rank:
            arrival.refuse("shrink: this is no rank of the communicator.")
            continue
        arrivals[rank] = arrival
        known |= {r for r in arrival.request.get("ended", []) if isinstance(r, int)}
    ranks = sorted([membership.rank, *arrivals])
    if len(ranks) < 2:
        raise FabricError(
            f"shrink: no other rank of {membership.size} came to rank {membership.rank}; start ranks again."
        )
    session = secrets.token_hex(16)
    for arrival in arrivals.values():
        arrival.answer({"ranks": ranks, "session": session})
        arrival.socket.close()
    return replace(membership.choose(ranks, 0), session=session)


def _ask_to_stay(membership: Membership, coordinator: int, known: set[int], deadline: float) -> dict[str, Any] | None:
    """The answer of the coordinator; None if it has ended."""
    request = {"purpose": "shrink", "session": membership.session, "rank": membership.rank, "ended": sorted(known)}
    try:
        connection = connect(_find_address(membership, coordinator), membership.secret, request, deadline, CONNECT_S)
        with connection.socket:
            return connection.read_answer(deadline)
    except HandshakeError as error:
        raise FabricError(str(error)) from None
    except (FabricError, OSError):
        return None


def grow_membership(membership: Membership, count: int, timeout: float) -> Membership:
    """Take `count` new ranks in, which call `join_membership`; raises FabricError if they do not come."""
    deadline = time.monotonic() + timeout
    if membership.rank:
        request = {"purpose": "grow", "session": membership.session, "rank": membership.rank, "count": count}
        try:
            connection = connect(_find_address(membership, 0), membership.secret, request, deadline)
            with connection.socket:
                answer = connection.read_answer(deadline)
        except (HandshakeError, OSError) as error:
            text = f"rank 0 did not answer within {timeout:g} s" if isinstance(error, OSError) else str(error)
            raise FabricError(f"grow: {text}") from None
        return _read_table(membership, answer)
    joined: list[tuple[Arrival, Member]] = []
    arrivals: dict[int, Arrival] = {}
    try:
        while len(arrivals) < membership.size - 1 or len(joined) < count:
            arrival = membership.listener.take(lambda request: _is_for_growth(request, membership), deadline)
            if arrival is None:
                missing = [str(r) for r in range(1, membership.size) if r not in arrivals]
                text = f"the ranks {', '.join(missing)} did not call it" if missing else ""
                text = text or f"{len(joined)} of {count} new ranks came to {membership.members[0].address}"
                raise FabricError(f"grow: {text} within {timeout:g} s; the communicator goes on without new ranks.")
            if arrival.request["purpose"] == "join":
                _admit(arrival, membership, joined, count)
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
    table = (*membership.members, *(member for _, member in joined))
    session = secrets.token_hex(16)
    newcomers = {membership.size + k: arrival for k, (arrival, _) in enumerate(joined)}
    for rank, arrival in {**arrivals, **newcomers}.items():
        arrival.answer({"members": [asdict(member) for member in table], "session": session, "rank": rank})
        arrival.socket.close()
    return replace(membership, members=table, session=session)


def join_membership(address: str, config: FabricConfig, timeout: float) -> Membership:
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
        return _read_table(Membership(0, (me,), "", secret, listener, config), answer)
    except BaseException:
        listener.close()
        raise


def _admit(arrival: Arrival, membership: Membership, joined: list[tuple[Arrival, Member]], count: int) -> None:
    try:
        member = Member(**arrival.request["member"])
    except (KeyError, TypeError):
        arrival.refuse("the request is not complete; install one release everywhere.")
        return
    problem = find_difference(membership.members[0], member, "the new rank")
    if problem is not None or len(joined) >= count:
        arrival.refuse(problem or f"{count} other ranks have been taken in.")
        return
    joined.append((arrival, replace(member, tuning={})))


def _read_table(membership: Membership, answer: dict[str, Any]) -> Membership:
    members = tuple(Member(**member) for member in answer["members"])
    return replace(membership, rank=int(answer["rank"]), members=members, session=str(answer["session"]))


def _is_for_growth(request: dict[str, Any], membership: Membership) -> bool:
    if request.get("purpose") == "join":
        return True
    return request.get("purpose") == "grow" and request.get("session") == membership.session


def _take(membership: Membership, purpose: str, deadline: float) -> Arrival | None:
    return membership.listener.take(
        lambda request: request.get("purpose") == purpose and request.get("session") == membership.session, deadline
    )


def _find_address(membership: Membership, rank: int) -> Address:
    member = membership.members[rank]
    if member.host == membership.members[membership.rank].host:
        return Address(member.local, 0)
    return parse_member_address(member.address)
