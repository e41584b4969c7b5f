"""What a host is, and which of its addresses ranks listen on."""

from __future__ import annotations

import array
import errno
import fcntl
import ipaddress
import os
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ridgeline.errors import InputError

_SIOCGIFCONF = 0x8912


@dataclass(frozen=True)
class Address:
    """Where a rank listens: a host and a port, or the abstract name of a Unix socket (then the port is 0)."""

    host: str
    port: int

    @property
    def is_local(self) -> bool:
        return self.host.startswith("@")

    def __str__(self) -> str:
        if self.is_local:
            return self.host
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def open_socket(self) -> tuple[socket.socket, Any]:
        """A new socket of the right family, and the address in the form of that family; raises OSError."""
        if self.is_local:
            return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM), "\0" + self.host[1:]
        family, kind, _, _, at = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)[0]
        return socket.socket(family, kind), at


def parse_address(text: str, what: str) -> Address:
    """Read "host:port", "[IPv6]:port" or "@name".

    >>> str(parse_address("[fd07::1]:4000", "address"))
    '[fd07::1]:4000'
    """
    if text.startswith("@") and len(text) > 1:
        return Address(text, 0)
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise InputError(f"{what} is '{text}'; write an IPv6 address in brackets, as in [fd07::1]:4000.")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise InputError(f"{what} is '{text}'; give host:port, as in 10.0.0.1:4000.")
    with suppress(ValueError):
        ip = ipaddress.ip_address(host)
        if isinstance(ip, ipaddress.IPv6Address) and ip.is_link_local and not ip.scope_id:
            raise InputError(f"{what} is '{text}', which needs a scope, as in [{host}%eth0]:{port}.")
    return Address(host, int(port))


def parse_ports(text: str) -> range:
    """Read "low-high" or one port; "" is any free port.

    >>> parse_ports("45000-45063")
    range(45000, 45064)
    """
    if not text:
        return range(1)
    low, dash, high = text.partition("-")
    high = high if dash else low
    if not low.isdecimal() or not high.isdecimal() or not 0 < int(low) <= int(high) < 1 << 16:
        raise InputError(f"ports is '{text}'; give low-high, as in 45000-45063.")
    return range(int(low), int(high) + 1)


def get_host_identity() -> str:
    """A text that is the same in all processes that can share memory and Unix sockets: one boot, one network namespace.

    RIDGELINE_FABRIC_HOST replaces it, to try several hosts on one.
    """
    chosen = os.environ.get("RIDGELINE_FABRIC_HOST")
    if chosen:
        return chosen
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}/{os.stat('/proc/self/ns/net').st_ino}"


def list_addresses() -> list[tuple[str, str]]:
    """(interface, address) of this host; link-local IPv6 addresses have their scope."""
    rows: list[tuple[str, str]] = []
    buffer = array.array("B", bytes(40 * 256))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link:
        request = struct.pack("iL", len(buffer), buffer.buffer_info()[0])
        (length,) = struct.unpack_from("i", fcntl.ioctl(link, _SIOCGIFCONF, request))
    data = buffer.tobytes()[:length]
    for at in range(0, length, 40):
        name = data[at : at + 16].split(b"\0")[0].decode()
        rows.append((name.partition(":")[0], socket.inet_ntoa(data[at + 20 : at + 24])))
    with suppress(OSError):
        for line in Path("/proc/net/if_inet6").read_text().splitlines():
            digits, _, _, _, _, name = line.split()
            ip = ipaddress.IPv6Address(int(digits, 16))
            rows.append((name, f"{ip}%{name}" if ip.is_link_local else str(ip)))
    return rows


def choose_host(interface: str, rendezvous: Address) -> str:
    """The address of this host that its rank listens on.

    interface   a name (eth0) or a subnet (10.0.0.0/8); "": the address that leads to the rendezvous
    rendezvous  its kind of address (IPv4, IPv6) is preferred
    """
    wants_v6 = ":" in rendezvous.host
    if not interface:
        return "127.0.0.1" if rendezvous.is_local else _find_route(rendezvous)
    rows = list_addresses()
    if "/" in interface:
        try:
            subnet = ipaddress.ip_network(interface, strict=False)
        except ValueError:
            raise InputError(f"interface is '{interface}', which is no subnet; write one as in 10.0.0.0/8.") from None
        fitting = [ip for _, ip in rows if ipaddress.ip_address(ip.partition("%")[0]) in subnet]
    else:
        fitting = [ip for name, ip in rows if name == interface]
        if not fitting and interface not in (name for _, name in socket.if_nameindex()):
            names = ", ".join(name for _, name in socket.if_nameindex())
            raise InputError(f"there is no interface '{interface}' on this host; there are: {names}.")
    if not fitting:
        raise InputError(f"no interface of this host has an address in '{interface}'.")
    return min(fitting, key=lambda ip: ((":" in ip) != wants_v6, "%" in ip))


def find_interface(host: str) -> str:
    """The interface that has an address of this host; "" if none has it."""
    return next((name for name, ip in list_addresses() if ip == host), "")


def list_ucx_devices(interface: str, root: str = "/") -> str:
    """UCX_NET_DEVICES for an interface: itself, and the RDMA devices behind it; "" leaves the choice to UCX."""
    if not interface or os.environ.get("UCX_NET_DEVICES"):
        return ""
    behind = Path(root).glob(f"sys/class/infiniband/*/device/net/{interface}")
    return ",".join([interface, *sorted(f"{path.parents[2].name}:1" for path in behind)])


def _find_route(to: Address) -> str:
    """The local address from which packets to another address leave."""
    try:
        family, _, _, _, at = socket.getaddrinfo(to.host, to.port, type=socket.SOCK_DGRAM)[0]
    except OSError as error:
        raise InputError(f"the host '{to.host}' of {to} is not known ({error.strerror}).") from None
    with socket.socket(family, socket.SOCK_DGRAM) as link:
        try:
            link.connect(at)
        except OSError as error:
            raise InputError(f"{to} cannot be reached from this host ({error.strerror}).") from None
        name = link.getsockname()
    host = str(name[0])
    if len(name) > 3 and name[3] and "%" not in host:
        host += f"%{socket.if_indextoname(name[3])}"
    return host


def describe_bind_error(error: OSError, at: Address) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {at.port} of {at.host} is in use by another program or rank; choose another one."
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{at} cannot be listened on: {at.host} is no address of this host."
    return f"{at} cannot be listened on ({error.strerror})."
