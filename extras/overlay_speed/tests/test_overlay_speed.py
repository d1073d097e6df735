"""The hooks of the build of overlays name functions of bash."""

from extras.overlay_speed import overlay
from lib.script.hooks import hooks
from lib.script.render import definitions


def test_hooks_are_functions():
    named = {each: hooks(each, "overlay") for each in vars(overlay) if each.isupper()}
    assert set(named) == {"BEFORE_COMPILE", "AFTER_COMPILE", "AFTER_PACK"}
    for each in named.values():
        assert each["overlay_speed"] in definitions()
