"""Which laws of the specification the obligations are about: the one account of it.

The laws of the z3 model have names of their own. A law that is about one operation rests on those
laws of the model, after that operation, which together say what it says.
"""

from collections.abc import Mapping

from attrs import frozen


@frozen
class About:
    """What of a part bears on a law: obligations by how their names begin, and their claims.

    Without names it is all obligations; without claims it is the whole of each.
    """

    names: tuple[str, ...] = ()
    claims: tuple[str, ...] = ()

    def chosen(self, name: str, claims: Mapping[str, object]) -> tuple[str, ...] | None:
        """The claims of the obligation `name` that bear on the law; `None`: it does not."""
        if self.names and not name.startswith(self.names):
            return None
        found = tuple(claim for claim in claims if claim in self.claims)
        return found if found or not self.claims else None


_STEPS: dict[str, About] = {
    "no-overlap": About(),
    "conservation": About(),
    "copy-on-write": About(names=("allocate", "append", "copy_on_write", "prefix_share")),
    "fork": About(names=("fork",)),
    "rollback": About(names=("truncate",)),
    "swap": About(names=("swap_",)),
}

ABOUT: dict[str, dict[str, About]] = {
    "arithmetic": {
        "bounded-waste": About(
            names=("blocks_are", "blocks_hold", "waste_", "growth_", "last_entry", "entry_")
        ),
        "rollback": About(names=("truncate",)),
        "window": About(
            names=("released_", "releases_", "a_window", "what_is_", "kept_for", "no_window")
        ),
    },
    "steps": _STEPS,
    "wide": _STEPS,
    "operations": {
        "no-overlap": About(claims=("in-pool", "no-overlap", "handed-out-once")),
        "conservation": About(claims=("no-leak", "free-count")),
        "bounded-waste": About(claims=("bounded-waste",)),
        "ref-count": About(claims=("exact-counts",)),
        "read-back": About(claims=("read-back",)),
        "prefix-sound": About(claims=("prefix-sound",)),
        "copy-on-write": About(("append", "copy_on_write"), ("read-back",)),
        "fork": About(("fork",), ("exact-counts", "read-back")),
        "rollback": About(("truncate",), ("no-leak", "free-count", "read-back")),
        "swap": About(("swap_",), ("handed-out-once", "no-leak", "read-back")),
    },
}
"""By part and law, what of the part bears on it."""


def laws_of(part: str, name: str, claims: Mapping[str, object]) -> dict[str, list[str]]:
    """The laws on which an obligation bears, each with the claims of it that do."""
    found = {law: about.chosen(name, claims) for law, about in ABOUT.get(part, {}).items()}
    return {law: list(chosen) for law, chosen in found.items() if chosen is not None}
