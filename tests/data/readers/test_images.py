"""The order of image files."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lametta import LamettaError
from lametta.data.readers.images import list_images, natural_key


@given(st.lists(st.integers(0, 10**6), min_size=1), st.text("ab01/", max_size=4))
def test_numbers_sort_as_numbers(numbers, prefix):
    paths = [f"{prefix}{number}.jpg" for number in numbers]
    if prefix[-1:].isdecimal():  # they would be part of the number
        prefix, paths = "", [f"{number}.jpg" for number in numbers]
    found = sorted(paths, key=natural_key)
    assert found == [f"{prefix}{number}.jpg" for number in sorted(numbers)]


@given(st.lists(st.text("ab019-", min_size=1, max_size=3), max_size=4, unique=True))
def test_a_folder_stays_in_one_piece(folders):
    paths = [f"{folder}/{i}.jpg" for i in range(3) for folder in folders]
    found = [path.partition("/")[0] for path in sorted(paths, key=natural_key)]
    assert len(list(itertools.groupby(found))) == len(folders)


def test_names_that_are_no_text_are_refused(tmp_path):
    file = tmp_path / "\udcff.jpg"
    try:
        file.touch()
    except (OSError, UnicodeEncodeError):
        pytest.skip("the file system takes no such name")
    with pytest.raises(
        LamettaError, match=r"must hold files with names in UTF-8, got '.udcff.jpg'"
    ):
        list_images(tmp_path)
