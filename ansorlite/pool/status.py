"""What a pool says of its devices: the table of `ansorlite pool status`, and draining.

In: the address of a scheduler. Out: text. The scheduler has each device's state from its last
heartbeat.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ansorlite.errors import UsageError
from ansorlite.names import shown
from ansorlite.pool.reference import Rates, verdicts
from ansorlite.pool.wire import Pool, ask
from ansorlite.tables import aligned

HEAD = ["Device", "Target", "Cores", "Load", "Temp", "Trials", "Waiting", "Drift", "Measures"]
LEFT = ("Device", "Target", "Measures")


async def devices_of(pool: Pool) -> list[dict[str, Any]]:
    """The devices of a pool by name; MachineError where the scheduler does not answer."""
    found: list[dict[str, Any]] = await ask(pool, "pool_devices")
    return sorted(found, key=lambda info: info["name"])


async def drain(pool: Pool, name: str) -> str:
    """Let a device finish its trial and leave; UsageError where the pool has none of that name."""
    found = {info["name"]: info["address"] for info in await devices_of(pool)}
    if name not in found:
        there = ", ".join(found) or "none"
        raise UsageError(f"the pool {pool.address} has no device {name!r}: there are {there}")
    back = await ask(pool, "pool_drain", found[name])
    return f"{name} leaves after the trial that it measures; {back} that waited go to others"


def status_text(found: Sequence[Mapping[str, Any]], address: str) -> str:
    """A line a device, then what is to be known of some: errors, throttling, shared cores."""
    if not found:
        return f"{address}: no device"
    lines = [_line(info) for info in found if "fingerprint" in info]
    total = ["", f"{len(lines)} devices", *[""] * (len(HEAD) - 2)]
    notes = [
        f"{info['name']}: the last error was: {shown(info['last_error'])}"
        for info in found
        if info.get("last_error")
    ]
    kinds: dict[str, dict[str, Rates]] = {}
    for info in found:
        if "fingerprint" in info:
            rates = Rates(info["rate_joined"], info["rate"])
            kinds.setdefault(info["fingerprint"], {})[info["name"]] = rates
    for rates_of in kinds.values():
        notes += [f"{name} {v.words}" for name, v in verdicts(rates_of).items() if v.words]
    return "\n".join([aligned(HEAD, lines, total, LEFT), *notes])


def _line(info: Mapping[str, Any]) -> list[str]:
    cores = ",".join(map(str, info["cores"]))
    load, degrees = info["load"], info["temperature_c"]
    return [
        info["name"],
        info["fingerprint"],
        cores or "-",
        "-" if load is None else f"{load:.2f}",
        "-" if degrees is None else f"{degrees:.0f} C",
        str(info["measured"]),
        str(info["waiting"]),
        f"{info['drift']:.2f}",
        "drained" if info["draining"] else info["measuring"] or "-",
    ]
