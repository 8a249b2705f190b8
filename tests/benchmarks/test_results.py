"""Sections of RESULTS.md."""

from benchmarks.results import replaced


def test_a_section_is_replaced_in_place_and_others_stay():
    text = replaced(replaced("# Results\n", "a.py", "one"), "b.py", "two")
    again = replaced(text, "a.py", "three")
    assert again == text.replace("one", "three")
    assert again.index("three") < again.index("two")


def test_writing_the_same_twice_changes_nothing():
    text = replaced("# Results\n", "a.py", "one")
    assert replaced(text, "a.py", "one") == text
