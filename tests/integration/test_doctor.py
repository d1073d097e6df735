"""doctor.py: faults are planted, and each is named with its fix."""


def test_all_is_well_where_it_is(healthy):
    assert {each["state"] for each in healthy.findings} == {"ok"}, healthy.text
    assert healthy.done.returncode == 0
