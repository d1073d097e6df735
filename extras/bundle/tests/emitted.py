"""The scripts of bundle.py. They are the same for all runtimes."""

from extras.bundle.plan import pack_lines, unpack_lines, verify_lines

BUNDLE = "/media/it's a stick"
KINDS = {
    "bundle_pack": lambda env: pack_lines(
        env.settings, env.paths, BUNDLE, typed="x y", allowed=["a b", "it's"]
    ),
    "bundle_verify": lambda env: verify_lines(env.paths.root, BUNDLE, typed="x y"),
    "bundle_unpack": lambda env: unpack_lines(env.settings, env.paths, BUNDLE, typed="x y"),
}
