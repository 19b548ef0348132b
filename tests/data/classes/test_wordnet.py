import importlib.util
import json
import lzma
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array
from scipy.sparse.csgraph import shortest_path
from typer.testing import CliRunner

from lametta import ClassMap, LamettaError
from lametta.cli.map import map_
from lametta.data.classes.imagenet import C16, IMAGENET, IMAGENET_NAMES, VID, VID_ANNOTATIONS
from lametta.data.classes.wordnet import WordNet, ancestral_map, c16, load_wordnet, resolve
from tests.conftest import shared, skip_for_want_of

ROOT = Path(__file__).parents[3]
ASSETS = ROOT / "src" / "lametta" / "data" / "assets"


def as_dict(classes):
    return {n: list(g) for n, g in zip(classes.names, classes.groups, strict=True)}


def vid_reference():
    return json.loads(shared("reference", "vid_target_to_imagenet_indices.json").read_text())


@pytest.mark.slow
def test_imagenet_classes():
    assert list(IMAGENET) == json.loads(shared("reference", "imagenet_wnids.json").read_text())
    assert [load_wordnet().words(synset)[0] for synset in IMAGENET] == list(IMAGENET_NAMES)


def test_vid_by_synset():
    expected = vid_reference()
    classes = ancestral_map(VID)
    assert list(classes.names) == list(expected)
    assert as_dict(classes) == expected
    assert ancestral_map(list(VID.values())).groups == classes.groups


def test_totals_of_the_paper():
    assert sum(map(len, ancestral_map(VID).groups)) == 279
    assert list(map(len, c16().groups)) == [2] * 16


@pytest.mark.slow
def test_vid_by_name():
    assert as_dict(ancestral_map(list(vid_reference()))) == vid_reference()


def test_vid_annotations_differ_for_boats_alone():
    assert list(VID_ANNOTATIONS) == list(VID)
    assert [name for name in VID if VID[name] != VID_ANNOTATIONS[name]] == ["boat"]
    assert "watercraft" in load_wordnet().words(VID_ANNOTATIONS["boat"])
    assert VID_ANNOTATIONS["boat"] in load_wordnet().ancestors(VID["boat"])


def test_c16():
    expected = json.loads(shared("reference", "imagenet_c16_classes.json").read_text())
    assert [(row["name"], row["wnid"]) for row in expected] == list(C16.items())
    assert as_dict(c16()) == {row["name"]: row["imagenet_indices"] for row in expected}
    assert c16().n_source == 1000


def test_ancestors_against_shortest_paths():
    graph = load_wordnet()
    synsets = list(graph.hypernyms)
    number = {synset: i for i, synset in enumerate(synsets)}
    edges = np.array([(number[s], number[up]) for s in synsets for up in graph.hypernyms[s]])
    assert len(edges) == 84427
    matrix = csr_array((np.ones(len(edges)), edges.T), shape=(len(synsets), len(synsets)))
    sample = np.random.default_rng(0).choice(len(synsets), 20, replace=False)
    for i, steps in zip(sample, shortest_path(matrix, indices=sample), strict=True):
        expected = {synsets[j]: int(steps[j]) for j in np.flatnonzero(np.isfinite(steps))}
        assert graph.ancestors(synsets[i]) == expected


@st.composite
def hierarchies(draw):
    """Ten nouns, each a kind of up to three earlier ones."""
    ups = [
        draw(st.lists(st.integers(0, i - 1), max_size=3, unique=True)) if i else []
        for i in range(10)
    ]
    return WordNet(
        {f"s{i}": tuple(f"s{up}" for up in up_i) for i, up_i in enumerate(ups)},
        {f"s{i}": f"noun{i}" for i in range(10)},
    )


def distances(graph, synset, steps=0):
    """The length of every path upwards, by recursion."""
    yield synset, steps
    for up in graph.hypernyms[synset]:
        yield from distances(graph, up, steps + 1)


@given(hierarchies(), st.permutations(range(10)), st.integers(1, 6))
def test_each_source_goes_to_its_closest_target(graph, order, n_targets):
    sources = [f"s{i}" for i in range(10)]
    targets = [f"noun{i}" for i in order[:n_targets]]
    synsets = [f"s{i}" for i in order[:n_targets]]
    expected = {target: [] for target in targets}
    for i, source in enumerate(sources):
        reached = {up for up, _ in distances(graph, source) if up in synsets}
        above = {up for target in reached for up, n in distances(graph, target) if n}
        paths = [(n, up) for up, n in distances(graph, source) if up in reached - above]
        if paths:
            expected[targets[synsets.index(min(paths)[1])]].append(i)
    classes = ancestral_map(targets, sources, graph=graph)
    assert as_dict(classes) == expected
    assert list(classes.names) == targets


def test_a_tie_goes_to_the_lowest_synset_in_any_order():
    graph = WordNet.parse("a\t\ta\nb\t\tb\nc\tb a\tc\nd\tb\td\ne\ta\te\n")
    assert as_dict(ancestral_map(["a", "b"], ["c", "d"], graph=graph)) == {"a": [0], "b": [1]}
    assert as_dict(ancestral_map(["b", "a"], ["c", "d"], graph=graph)) == {"b": [1], "a": [0]}
    assert as_dict(ancestral_map(["b"], ["c", "e"], graph=graph.tree())) == {"b": [0]}
    with pytest.raises(LamettaError, match="got none for a"):
        ancestral_map(["a"], ["c"], graph=graph.tree())


@pytest.mark.parametrize(
    ("name", "synset"),
    [
        ("domestic cat", "n02121808"),
        ("Domestic_Cat", "n02121808"),
        ("  lesser   panda ", "n02509815"),
        ("red panda", "n02509815"),
        ("n02509815", "n02509815"),
        ("tiger", "n02129604"),  # the animal is the second sense
        ("tiger.n.01", "n10710632"),
        ("TIGER.n.2", "n02129604"),
        ("street_sign.n.01", "n06794110"),
        ("crane", "n03126707"),  # the machine and the bird are a class each
        ("crane.n.05", "n02012849"),
        ("banker", "n09837824"),  # no sense covers a class
        ("raccoon", "n02508021"),  # none does, but the animal's family has two; the fur comes first
        ("Monaco", "n08967868"),  # a country is an instance of its kind
    ],
)
def test_resolve(name, synset):
    choice = resolve(name)
    assert (choice.name, choice.synset) == (name, synset)
    covered = [sense for sense in IMAGENET if synset in dict(distances(load_wordnet(), sense))]
    assert choice.covered == len(covered)
    assert choice.covered == max(choice.senses.values())


def test_coverage_is_of_the_given_sources():
    assert resolve("tiger", ["n10710632"]).synset == "n10710632"
    assert resolve("crane", ["n02012849"]).synset == "n02012849"


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (["tigre"], "got 'tigre'; near it: .*tiger"),
        (["red pandda"], "near it: red panda"),
        (["n99999999"], "got 'n99999999'"),
        (["tiger.n.03"], "must be one of the 2 senses of tiger, got 'tiger.n.03'"),
        (["tiger.n.00"], "must be one of the 2 senses"),
        (["tigre.n.01"], "near it: .*tiger"),
        ([""], "got ''"),
        (["dog", "domestic dog"], "got n02084071 for dog and domestic dog"),
        (["dog", "dog"], "must be different synsets"),
        (["dog", "banker", "Monaco"], "got none for banker, Monaco; drop_empty"),
        ("dog", "targets must be several names, got the string 'dog'"),
        ([], "at least one target"),
    ],
)
def test_bad_targets(targets, message):
    with pytest.raises(LamettaError, match=message):
        ancestral_map(targets)


def test_bad_source():
    with pytest.raises(LamettaError, match="got 'tabby'"):
        ancestral_map(["cat"], ["tabby"])
    with pytest.raises(LamettaError, match="got 'tabby'"):
        load_wordnet().words("tabby")


def test_options_of_the_map():
    classes = ancestral_map({"hound": "dog", "money": "banker"}, drop_empty=True, pooling="max")
    assert classes == ClassMap({"hound": range(151, 269)}, n_source=1000, pooling="max")


def test_a_closer_target_takes_from_a_farther_one():
    both = as_dict(ancestral_map(["dog", "terrier"]))
    assert sorted(both["dog"] + both["terrier"]) == list(range(151, 269))
    assert both["terrier"] == as_dict(ancestral_map(["terrier"]))["terrier"]


def test_what_is_a_kind_of_another_target_takes_all_of_its_own():
    classes = as_dict(ancestral_map(["animal", "dog"]))
    assert classes["dog"] == list(range(151, 269))  # two breeds are fewer steps from "animal"
    assert not set(classes["animal"]) & set(classes["dog"])
    assert as_dict(ancestral_map(["dog", "animal"])) == classes


@pytest.mark.slow
def test_graph_is_read_when_used():
    code = "from lametta.data.classes.wordnet import load_wordnet as read\n"
    code += "print(read.cache_info().currsize)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "0", done.stderr


def run(*arguments):
    app = typer.Typer()
    app.command("map")(map_)
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_command_maps_vid(tmp_path):
    result = run("--targets", ",".join(vid_reference()), "-o", tmp_path / "map.json")
    assert result.exit_code == 0, result.output
    assert ClassMap.load(tmp_path / "map.json") == ClassMap(vid_reference(), n_source=1000)
    assert "279 of 1000 classes mapped onto 30" in result.output
    for row in ("bird n01503061 59 7-24, 80-100, 127-146", "rabbit n02324045 2 330, 332 wood"):
        assert row in " ".join(result.output.split())
    assert "tiger: sense 2 of 2, a kind of big cat, covers the most classes, 1" in result.output
    assert "covers the most classes, 10; sense 2 covers 2" in result.output
    assert "antelope:" not in result.output  # it has one sense


def test_command_reads_files_and_options(tmp_path):
    (tmp_path / "names.txt").write_text("n02118333\n\n  Giant Panda  \nbanker\n")
    arguments = ["--targets", f"@{tmp_path / 'names.txt'}", "-o", tmp_path / "map.json"]
    result = run(*arguments, "--drop-empty", "--pooling", "sum")
    assert result.exit_code == 0, result.output
    expected = {"n02118333": [277, 278, 279, 280], "Giant Panda": [388]}
    loaded = ClassMap.load(tmp_path / "map.json")
    assert loaded == ClassMap(expected, n_source=1000, pooling="sum")
    assert "5 of 1000 classes mapped onto 2" in result.output


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        ("dog,tigre", "got 'tigre'; near it:"),
        (" , ", "--targets must name at least one class"),
        ("@missing.txt", "no such file: 'missing.txt'"),
        ("banker", "got none for banker"),
    ],
)
def test_command_errors(targets, message, tmp_path):
    result = run("--targets", targets, "-o", tmp_path / "map.json")
    assert result.exit_code == 2
    assert message in result.output
    assert not (tmp_path / "map.json").exists()


@cache
def script():
    path = ROOT / "scripts" / "make_wordnet.py"
    spec = importlib.util.spec_from_file_location("make_wordnet", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def make(database, output, monkeypatch):
    output.mkdir()
    (output / "imagenet.txt").write_text("n00000003\n")
    arguments = ["make_wordnet.py", str(database), "-o", str(output)]
    monkeypatch.setattr(sys, "argv", arguments)
    script().main()
    return {path.name: path.read_bytes() for path in output.iterdir()}


def write_database(folder, version="3.0"):
    """Three nouns as the manual page wndb(5WN) describes them."""
    folder.mkdir()
    (folder / "data.noun").write_text(
        f"  1 WordNet {version} Copyright 2006 by Princeton University.  \n"
        "00000001 03 n 01 thing 0 001 ~ 00000002 n 0000 | all there is  \n"
        "00000002 03 n 02 Cat 0 big_cat 0 002 @ 00000001 n 0000 ~ 00000003 n 0000 | it purrs  \n"
        "00000003 03 n 02 Tom_cat 0 cat 0 002 @i 00000002 n 0000 + 00000009 v 0101 | a he  \n"
    )
    (folder / "index.noun").write_text(
        f"  1 WordNet {version} Copyright 2006 by Princeton University.  \n"
        "big_cat n 1 1 @ 1 0 00000002  \n"
        "cat n 2 2 @ ~ 2 0 00000003 00000002  \n"
        "thing n 1 1 ~ 1 0 00000001  \n"
        "tom_cat n 1 1 @ 1 0 00000003  \n"
    )
    return folder


def test_script(tmp_path, monkeypatch):
    database = write_database(tmp_path / "database")
    made = make(database, tmp_path / "one", monkeypatch)
    text = lzma.decompress(made["wordnet-nouns.txt.xz"]).decode()
    assert text == (
        "n00000001\t\tthing\n"
        "n00000002\tn00000001\tCat:2 big_cat\n"
        "n00000003\ti00000002\tTom_cat cat:1\n"
    )
    assert made["imagenet.txt"] == b"n00000003\tTom cat\n"
    assert made["WORDNET-LICENSE"].startswith(b"WordNet 3.0 Copyright 2006")
    assert make(database, tmp_path / "two", monkeypatch) == made
    graph = WordNet.parse(text)
    assert graph.senses["cat"] == ("n00000003", "n00000002")
    assert graph.words("n00000003") == ("Tom cat", "cat")
    assert graph.ancestors("n00000003") == {"n00000003": 0, "n00000002": 1, "n00000001": 2}
    assert graph.instances == {"n00000003"}


def test_script_wants_wordnet_3_0(tmp_path, monkeypatch):
    database = write_database(tmp_path / "database", version="3.1")
    with pytest.raises(SystemExit, match="must be WordNet 3.0"):
        make(database, tmp_path / "out", monkeypatch)


@pytest.mark.slow
def test_asset_is_what_the_script_makes():
    database = Path(os.environ.get("WNSEARCHDIR", "/usr/share/wordnet"))  # as WordNet looks for it
    if not database.is_dir():
        skip_for_want_of("wordnet-base")
    lines = lzma.decompress((ASSETS / "wordnet-nouns.txt.xz").read_bytes()).decode().splitlines()
    assert list(script().synset_lines(database)) == lines
    assert (ASSETS / "WORDNET-LICENSE").read_text() == script().license_text(database)


def test_kinds_are_the_nodes_of_imagenets_hierarchy():
    graph = load_wordnet()
    assert len(graph.hypernyms.keys() - graph.instances) == 74_401  # of wordnet.is_a.txt
    assert not graph.instances & set(IMAGENET)
    everest, zebra = graph.senses["mount_everest"][0], graph.senses["zebra"][0]
    assert graph.words(graph.nearest_kind(everest))[0] == "mountain peak"
    assert graph.nearest_kind(zebra) == zebra
    assert not {graph.nearest_kind(synset) for synset in graph.instances} & graph.instances


def test_license_travels_with_the_nouns():
    text = (ASSETS / "WORDNET-LICENSE").read_text()
    assert "Permission to use, copy, modify and distribute" in text
    assert "WordNet 3.0 Copyright 2006 by Princeton University.  All rights reserved." in text
    assert (ASSETS / "wordnet-nouns.txt.xz").stat().st_size < 2_500_000
