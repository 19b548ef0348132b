"""The live page in a browser, against the server itself and real features."""

import json
import re
import urllib.request
from html.parser import HTMLParser

import numpy as np
import pytest

from lametta.correctors import Product
from lametta.serve.app import asset
from tests.conftest import make_batch, shared, softmax
from tests.serve.chromium import chromium
from tests.serve.server import serving

TOKEN = "a-token-of-enough-letters"
HOSTILE = '<img src=x onerror="document.title=1">'
NAMES = ("airplane", "automobile", "<b>bird</b>", "cat", "deer", "dog", "frog", "horse")
NAMES += ("ship", "truck")  # CIFAR-10's
FILES = ("index.html", "page.css", "page.js", "charts.js", "icon.svg")


def _text(name):
    content, _ = asset(name)
    return content.decode()


class _Tags(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.found = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))


def test_files_have_types_and_others_are_not_given():
    assert [asset(name)[1].partition(";")[0] for name in FILES] == [
        *("text/html", "text/css", "text/javascript", "text/javascript", "image/svg+xml"),
    ]
    for name in ("", "../monitor.py", "__init__.py", "/etc/passwd", "index.html/"):
        assert asset(name) is None


def test_the_page_needs_nothing_from_elsewhere_and_nothing_inline():
    tags = _Tags(_text("index.html")).found
    for tag, attributes in tags:
        assert not [name for name in attributes if name.startswith("on") or name == "style"]
        assert tag != "style"
        for name in ("src", "href"):
            assert not attributes.get(name, "").startswith(("http", "//", "/", "data:"))
    scripts = [attributes for tag, attributes in tags if tag == "script"]
    assert [script["src"] for script in scripts] == ["static/page.js"]
    for name in FILES:
        links = re.findall(r"https?://[^\s\"']+", _text(name))
        assert set(links) <= {"http://www.w3.org/2000/svg"}  # a name, not an address
    for name in ("page.js", "charts.js"):
        for sink in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
            assert sink not in _text(name)


def _luminance(color):
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return np.dot(linear, [0.2126, 0.7152, 0.0722])


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_words_can_be_read_in_both_schemes(scheme):
    blocks = re.findall(r":root \{(.*?)\}", _text("page.css"), flags=re.DOTALL)
    assert len(blocks) == 2
    colors = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", blocks[scheme]))
    for paper, inks in {
        "paper": ("ink", "soft", "accent", "bad"),
        "card": ("ink", "soft", "accent", "bad"),
        "bad-paper": ("ink", "soft", "bad"),
    }.items():
        for ink in inks:
            light, dark = sorted((_luminance(colors[paper]), _luminance(colors[ink])))[::-1]
            assert (light + 0.05) / (dark + 0.05) >= 4.5, (paper, ink)


def _ask(server, model, stream, features, probs):
    inputs = [
        {
            "name": name,
            "shape": list(array.shape),
            "datatype": "FP32",
            "data": array.ravel().tolist(),
        }
        for name, array in (("features", features), ("probs", probs))
    ]
    body = {"inputs": inputs, "parameters": {"sequence_id": stream}}
    request = urllib.request.Request(
        f"{server.url}/v2/models/{model}/infer",
        json.dumps(body).encode(),
        {"Content-Type": "application/json", "Authorization": f"Bearer {TOKEN}"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.status == 200


@pytest.fixture(scope="module")
def images():
    """Features and probabilities of CIFAR-10's images, in any order."""
    with np.load(shared("data", "banks", "cifar10_resnet20_clean.npz")) as bank:
        picked = np.random.default_rng(0).permutation(len(bank["labels"]))[:2048]
        features = bank["features"][picked].astype(np.float32)
        return features, softmax(bank["logits"][picked].astype(np.float32))


@pytest.mark.slow(7)
def test_a_click_through_the_page(browser, images, tmp_path):
    features, probs = images
    token = tmp_path / "tokens"
    token.write_text(TOKEN + "\n")
    # Products are for tracks of one object: on images in any order they stick to one class.
    options = ("--corrector", "prudent", "--corrector", "stuck=product", "--token-file", token)
    (tmp_path / "names").write_text("\n".join(NAMES))
    options += ("--names", tmp_path / "names")
    with serving(*options) as server, chromium(browser) as tab:
        tab.resize(1280)
        tab.go(f"{server.url}/")
        tab.wait("!document.getElementById('ask').hidden")
        assert tab.evaluate("document.activeElement.id") == "token"
        tab.type("not-the-right-token")
        tab.press_enter()
        tab.wait("document.getElementById('ask-why').textContent.includes('refused')")
        tab.type(TOKEN)
        tab.press_enter()
        tab.wait("document.getElementById('state').textContent === 'live'")
        assert tab.evaluate("document.getElementById('ask').hidden")
        assert tab.evaluate("[...document.querySelectorAll('h2')].map((x) => x.textContent)") == [
            *("This server asks for a token", "prudent", "stuck"),
        ]
        tab.wait("document.querySelector('.idle')?.checkVisibility()")

        streams = [HOSTILE, "door", "yard-2", "yard-10"]
        for i in range(0, 256, 4):
            name = streams[i // 4 % 4]
            _ask(server, "prudent", name, features[i : i + 4], probs[i : i + 4])
        tab.wait("document.querySelectorAll('tbody .stream').length === 4")
        names = "[...document.querySelectorAll('tbody .stream')].map((x) => x.textContent)"
        assert tab.evaluate(names) == [HOSTILE, "door", "yard-2", "yard-10"]
        assert tab.evaluate("document.querySelectorAll('main img').length") == 0
        assert tab.evaluate("document.querySelectorAll('figure svg path').length") > 4
        tiles = "[...document.querySelector('.tiles').children].map((x) => x.textContent)"
        tab.wait(f"{tiles}.includes('Samples256')")  # it may have asked amid the requests
        assert "Order, 4 of 4none" in tab.evaluate(tiles)
        orders = "[...document.querySelectorAll('tbody td:nth-child(5)')].map((x) => x.textContent)"
        assert tab.evaluate(orders) == ["none"] * 4

        shown = "[...document.querySelector('.legend').querySelectorAll('span')]"
        legend = tab.evaluate(f"{shown}.map((x) => x.textContent)")
        assert legend
        assert {*legend} <= {*NAMES, "all others"}
        assert tab.evaluate("document.querySelectorAll('.strip').length") == 0
        tab.click("tbody tr:nth-of-type(3) .stream")
        tab.wait("document.querySelectorAll('.strip').length === 1")
        assert tab.evaluate("document.querySelectorAll('.strip svg')[0].children.length") == 64
        said = tab.evaluate("document.querySelector('.strip .said').textContent")
        assert any(name in said for name in NAMES)
        assert tab.evaluate("document.querySelector('.strip').textContent").endswith("Ordernone")
        assert "class " not in tab.evaluate("document.querySelector('.model').textContent")
        open_ = "document.querySelector('tbody .stream[aria-expanded=true]').textContent"
        assert tab.evaluate(open_) == "door"
        tab.click("tbody tr:nth-of-type(3) .stream")
        tab.wait("document.querySelector('.detail:not([hidden])') === null")
        tab.click("tbody tr:nth-of-type(3) .stream")  # and stays open from here on

        assert tab.evaluate("document.querySelectorAll('.alarms li').length") == 0
        for i in range(0, 2048, 64):
            _ask(server, "stuck", 7, features[i : i + 64], probs[i : i + 64])
        tab.wait("document.querySelector('[data-alarm=corrector_collapse]')")
        words = tab.evaluate(
            "document.querySelector('[data-alarm=corrector_collapse]').textContent"
        )
        assert "The corrector's predictions collapse since" in words
        assert "Streams: 7" in words
        assert tab.evaluate("document.title") == "(1) lametta"
        tab.screenshot(tmp_path / "wide.png")
        tab.evaluate("document.querySelector('[data-chart=changed]').scrollIntoView()")
        tab.click("[data-chart=changed] svg")  # the pointer is over it now
        tab.wait("/ · /.test(document.querySelector('[data-chart=changed] span').textContent)")

        light = "getComputedStyle(document.body).backgroundColor"
        tab.prefer(prefers_color_scheme="light")
        before = tab.evaluate(light)
        tab.prefer(prefers_color_scheme="dark", prefers_reduced_motion="reduce")
        assert tab.evaluate(light) != before
        still = "getComputedStyle(document.getElementById('state'), '::before').animationName"
        assert tab.evaluate(still) == "none"
        for width in (390, 320):
            tab.resize(width)
            tab.wait(
                f"document.querySelector('figure svg').getBoundingClientRect().width < {width}"
            )
            assert tab.evaluate("document.documentElement.scrollWidth") <= width
        tab.screenshot(tmp_path / "narrow.png")
        tab.resize(1280)

        server.stop()
        tab.wait("document.getElementById('state').textContent.startsWith('not reachable since')")
        assert tab.evaluate("document.querySelectorAll('tbody .stream').length") == 5  # as it was
        server.start()
        tab.wait("document.getElementById('state').textContent === 'live'")

        assert {url for url in tab.urls if not url.startswith(server.url)} <= {"about:blank"}
        # What the test itself did: a wrong token, and a server that went away.
        own = ("401 (Unauthorized)", "net::ERR_")
        assert [x for x in tab.problems if not any(words in x for words in own)] == []


@pytest.mark.slow(5)
def test_the_page_shows_the_shadow(browser, tmp_path):
    """How often the correction would have differed, and in which classes."""
    features, probs = make_batch(64, len(NAMES), scale=1.0)
    (tmp_path / "names").write_text("\n".join(NAMES))
    options = ("--corrector", "stuck=product", "--names", tmp_path / "names", "--shadow")
    with serving(*options) as server, chromium(browser) as tab:
        tab.resize(1280)
        tab.go(f"{server.url}/")
        _ask(server, "stuck", HOSTILE, features, probs)
        tab.wait("document.querySelector('.shadow')?.checkVisibility()")
        own = Product().correct(features, probs).probs.argmax(1)
        n = int((own != probs.argmax(1)).sum())
        assert n > 8
        said = tab.evaluate("document.querySelector('.shadow').textContent")
        assert f"would have changed {n} of 64 samples" in said
        last = int(np.flatnonzero(own != probs.argmax(1))[-1])
        assert f"{HOSTILE}: {NAMES[probs[last].argmax()]} (" in said
        lost = (
            "[...document.querySelectorAll('.shadow tbody tr')].map((x) => +x.cells[3].innerText)"
        )
        assert sum(tab.evaluate(lost)) == n
        assert tab.evaluate("document.querySelectorAll('main img').length") == 0
        tab.screenshot(tmp_path / "shadow.png")
        assert [x for x in tab.problems if "401" not in x] == []
