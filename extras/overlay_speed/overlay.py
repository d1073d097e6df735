"""The hooks of the build of an overlay: functions of overlay_speed.bash."""

BEFORE_COMPILE = "module_index_copy"
AFTER_COMPILE = "module_index_write"
AFTER_PACK = "overlay_find_reads"
