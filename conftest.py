"""The tests of lib/ and of extras/ share what tests/support/ has."""

pytest_plugins = ["support.fixtures"]
