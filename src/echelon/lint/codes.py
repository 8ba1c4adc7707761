"""Codes without a rule of their own: they stay reserved, for old comments and settings."""

MERGED = {
    **dict.fromkeys(("E105", "E111", "E112", "E113", "E121"), "E104"),
    "E103": "E102",
    **dict.fromkeys(("E108", "E109"), "E101"),
    **dict.fromkeys(("E302", "E303", "E304", "E305"), "E301"),
    "E407": "E314",
    **dict.fromkeys(("E503", "E504", "E505", "E508", "E511"), "E507"),
}
"""Codes that are part of another one."""
REMOVED = frozenset(
    {
        *("E119", "E306", "E312", "E313", "E402", "E403", "E405"),
        *("E115", "E117", "E118", "E120", "E206", "E212", "E213", "E214", "E309", "E310", "E311"),
        *("E315", "E316", "E404", "E410", "E506", "E510", "E512", "E601", "E603", "E604", "E605"),
        *("E606", "E607", "E608", "E611", "E612", "E613", "E614", "E615", "E621", "E622", "E623"),
        *("E624", "E625", "E628", "E629"),
    }
)
"""Codes of rules that found too little, or were wrong too often."""
