"""/metrics of a real server while it works: figures that agree in every scrape, and labels that nobody can multiply."""

import contextlib
import json
import math
import random
import shutil
import subprocess
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from tests.support.fake_server import ServerProcess, running_real_server
from tests.support.models import RAND_VOCAB, rand_model
from tests.support.parity import random_ids
from tests.support.prometheus import tool
from tests.support.waiting import wait_until

RULES = Path(__file__).parents[2] / "deploy" / "prometheus" / "octavo.rules.yml"
NUM_BLOCKS = 100
NUM_SCRAPES = 200

SWAPPED = ("octavo:preemptions", "octavo:swap_out_seconds", "octavo:swap_in_seconds", "octavo:swap_in_bytes")

Page = dict[str, Metric]


@pytest.fixture(scope="module")
def real_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A pool that the load below overfills."""
    model: Path = rand_model(tmp_path_factory.mktemp("rand"), max_position_embeddings=2048)
    flags = ["--num-blocks", str(NUM_BLOCKS), "--block-size", "4", "--max-model-len", "300", "--max-num-seqs", "8"]
    flags += ["--preemption-mode", "swap", "--swap-space", "0.05", "--admission-quantile", "0", "--threads", "1"]
    flags += ["--allow-pins", "--tenant-header", "X-Tenant-Id", "--scheduling-policy", "priority"]
    with running_real_server(model, *flags) as running:
        yield running.wait_ready(60.0)


def scrape(client: httpx.Client) -> Page:
    page = client.get("/metrics").raise_for_status().text
    return {family.name: family for family in text_string_to_metric_families(page)}


def by_label(page: Page, name: str, label: str) -> dict[str, float]:
    return {sample.labels[label]: sample.value for sample in page[name].samples if label in sample.labels}


def gauge(page: Page, name: str) -> float:
    (sample,) = page[name].samples
    return sample.value


def label_sets(page: Page) -> set[tuple[str, frozenset[tuple[str, str]]]]:
    return {(sample.name, frozenset(sample.labels.items())) for family in page.values() for sample in family.samples}


def check_consistent(page: Page) -> None:
    blocks = by_label(page, "octavo:kv_blocks", "state")
    free, cached, pinned, active = (blocks[state] for state in ("free", "cached", "pinned", "active"))
    assert free + cached + pinned + active == gauge(page, "octavo:kv_blocks_total") == NUM_BLOCKS
    assert 0 <= blocks["shared"] <= active
    assert gauge(page, "vllm:kv_cache_usage_perc") == (pinned + active) / NUM_BLOCKS
    assert gauge(page, "octavo:kv_blocks_allocatable") <= free + cached
    assert gauge(page, "octavo:admissible_prompt_tokens") <= 4 * gauge(page, "octavo:kv_blocks_allocatable")
    assert gauge(page, "octavo:pinned_blocks") >= pinned
    host = by_label(page, "octavo:host_blocks", "state")
    assert min(host.values()) >= 0
    assert host["swapped"] == blocks["swapped"] == gauge(page, "octavo:swapped_blocks")
    filled = gauge(page, "octavo:filled_slot_ratio")
    assert math.isnan(filled) if active == 0 else 0 <= filled <= 1 or math.isnan(filled)
    for family in page.values():
        if family.type == "histogram":
            ends = [each.value for each in family.samples if each.labels.get("le") == "+Inf"]
            assert ends == [each.value for each in family.samples if each.name == f"{family.name}_count"]


def check_never_falls(before: Page, after: Page) -> None:
    for name, family in before.items():
        if family.type not in ("counter", "histogram"):
            continue
        later = {(each.name, frozenset(each.labels.items())): each.value for each in after[name].samples}
        for each in family.samples:
            assert later[each.name, frozenset(each.labels.items())] >= each.value, each


def request_body(rng: random.Random) -> dict[str, Any]:
    head = random_ids(40, RAND_VOCAB, seed=rng.randrange(3))
    body = {
        "prompt": head[: rng.randrange(40)] + random_ids(rng.randint(1, 30), RAND_VOCAB, seed=rng.randrange(10**6)),
        "max_tokens": rng.randint(1, 100),
        "n": rng.choice([1, 1, 1, 2]),
        "ignore_eos": True,
        "priority": rng.randint(-2, 2),
        "stream": rng.random() < 0.3,
    }
    return body | ({"pin_prefix": {"ttl": 0.2}} if rng.random() < 0.1 else {})


def load(server: ServerProcess, seed: int, stop: threading.Event, answered: list[int]) -> None:
    rng = random.Random(seed)
    with server.client(**{"X-Tenant-Id": f"tenant-{seed}"}) as client:
        while not stop.is_set():
            body = request_body(rng)
            if not body["stream"]:
                answered.append(client.post("/v1/completions", json=body).status_code)
                continue
            with client.stream("POST", "/v1/completions", json=body) as response:
                lines = response.iter_lines()
                for _ in range(rng.randrange(20)):
                    next(lines, None)  # and the client leaves


def wait_idle(client: httpx.Client) -> Page:
    pages = list[Page]()

    def is_idle() -> bool:
        pages.append(scrape(client))
        return gauge(pages[-1], "vllm:num_requests_running") == gauge(pages[-1], "vllm:num_requests_waiting") == 0

    wait_until(is_idle)
    return pages[-1]


@pytest.mark.slow
def test_every_one_of_many_scrapes_under_load_adds_up(real_server: ServerProcess) -> None:
    """B59 (i), (vii): and when all have gone, by themselves or not, nothing is left."""
    stop, answered = threading.Event(), list[int]()
    threads = [threading.Thread(target=load, args=(real_server, seed, stop, answered)) for seed in range(10)]
    for thread in threads:
        thread.start()
    try:
        with real_server.client() as client:
            before = scrape(client)
            for _ in range(NUM_SCRAPES):
                page = scrape(client)
                check_consistent(page)
                check_never_falls(before, page)
                before = page
                time.sleep(0.01)
            wait_until(lambda: answered.count(200) > 20)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert set(answered) <= {200, 400}, "400: pins and requests larger than what pins leave"
    with real_server.client() as client:
        page = wait_idle(client)
    check_consistent(page)
    blocks = by_label(page, "octavo:kv_blocks", "state")
    assert (blocks["active"], blocks["shared"], blocks["swapped"]) == (0, 0, 0)
    assert gauge(page, "octavo:queue_head_age_seconds") == 0
    steps = total(page, "octavo:steps")
    parts = {sample.labels["part"]: sample.value for sample in page["octavo:step_time_seconds"].samples
             if sample.name.endswith("_count")}  # fmt: skip
    assert len(parts) == 4
    assert all(0 < count <= steps for count in parts.values())


def test_what_gives_way_is_swapped_out_and_in_again(real_server: ServerProcess) -> None:
    """All rows are taken when something urgent comes. What the choice that gives way has in a block of its own is
    swapped; three times of four there is such a block, so it is tried until there is."""
    choices = {"max_tokens": 40, "n": 8, "ignore_eos": True, "stream": True}
    urgent = {"prompt": [1, 2, 3], "max_tokens": 2, "ignore_eos": True, "priority": -9}
    with real_server.client() as client, ThreadPoolExecutor() as pool:
        before = wait_idle(client)
        for seed in range(20):
            low = {"prompt": random_ids(12, RAND_VOCAB, seed=seed)} | choices
            with client.stream("POST", "/v1/completions", json=low) as response:
                lines = response.iter_lines()
                next(lines)
                with real_server.engine_stopped():
                    answer = pool.submit(httpx.post, f"{real_server.url}/v1/completions", json=urgent, timeout=60.0)
                    wait_until(lambda: real_server.num_open == 2)
                assert "data: [DONE]" in list(lines)
            answer.result().raise_for_status()
            after = wait_idle(client)
            grown = [total(after, name) - total(before, name) for name in SWAPPED]
            if all(grown):
                return
    pytest.fail(f"no swap in and out again in 20 tries: {grown}")


def total(page: Page, name: str) -> float:
    return sum(sample.value for sample in page[name].samples if sample.name.endswith("_total"))


def test_endings_and_tokens_are_those_of_the_answers(real_server: ServerProcess) -> None:
    """B59 (v): five good ones, three that their clients leave, two that cannot be, one whose time is over."""
    with real_server.client() as client:
        before = wait_idle(client)
        usages = []
        for seed in range(5):
            body = {"prompt": random_ids(20, RAND_VOCAB, seed=seed), "max_tokens": 5 + seed, "ignore_eos": True}
            usages.append(client.post("/v1/completions", json=body).raise_for_status().json()["usage"])
        good = wait_idle(client)
        for name, field in (("vllm:prompt_tokens", "prompt_tokens"), ("vllm:generation_tokens", "completion_tokens")):
            counted = total(good, name) - total(before, name)
            assert counted == sum(usage[field] for usage in usages)
        for _ in range(3):
            endless = {"prompt": [1, 2], "max_tokens": 290, "ignore_eos": True, "stream": True}
            with contextlib.ExitStack() as left:
                with client.stream("POST", "/v1/completions", json=endless) as response:
                    next(response.iter_lines())
                    left.enter_context(real_server.engine_stopped())
                wait_until(lambda: not real_server.num_open)
        for wrong in ({"max_tokens": 10_000}, {"temperature": -1}):
            assert client.post("/v1/completions", json={"prompt": [1, 2]} | wrong).status_code == 400
        late = {"prompt": [1, 2], "max_tokens": 290, "ignore_eos": True, "request_timeout_ms": 60}
        assert client.post("/v1/completions", json=late).status_code == 504
        after = wait_idle(client)
    endings = by_label(after, "vllm:request_success", "finished_reason")
    earlier = by_label(before, "vllm:request_success", "finished_reason")
    ended = {reason: count - earlier[reason] for reason, count in endings.items()}
    assert (ended["length"], ended["abort"]) == (5, 3)
    rejected = total(after, "octavo:requests_rejected") - total(before, "octavo:requests_rejected")
    timed_out = total(after, "octavo:requests_timed_out")
    timed_out -= total(before, "octavo:requests_timed_out")
    assert (rejected, timed_out) == (2, 1)


def test_prometheus_scrapes_it_and_evaluates_the_rules(
    real_server: ServerProcess, tmp_path: Path, free_port: int
) -> None:
    """Every rule is evaluated without an error, and none fires on a server that has nothing to do."""
    shutil.copy(RULES, tmp_path)
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [RULES.name],
        "scrape_configs": [
            {"job_name": "octavo", "static_configs": [{"targets": [real_server.url.partition("//")[2]]}]}
        ],
    }
    (tmp_path / "prometheus.yml").write_text(json.dumps(config))  # YAML holds JSON
    flags = ["--config.file=prometheus.yml", "--storage.tsdb.path=data", f"--web.listen-address=127.0.0.1:{free_port}"]
    process = subprocess.Popen([tool("prometheus"), *flags], cwd=tmp_path, stderr=subprocess.DEVNULL)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{free_port}/api/v1", timeout=20.0) as watcher:
            rules = list[dict[str, Any]]()
            wait_until(lambda: rules.extend(evaluated(watcher)) or rules)
            named = set(watcher.get("/label/__name__/values").json()["data"])
    finally:
        process.kill()
        process.wait()
    assert [rule["health"] for rule in rules] == ["ok"] * 5
    assert [rule["state"] for rule in rules] == ["inactive"] * 5
    with real_server.client() as client:
        assert {sample.name for family in scrape(client).values() for sample in family.samples} <= named


def evaluated(watcher: httpx.Client) -> list[dict[str, Any]]:
    """The rules, once the target has been scraped and they have all been evaluated after that."""
    try:
        targets = watcher.get("/targets").json()["data"]["activeTargets"]
        if [target["health"] for target in targets] != ["up"]:
            return []
        (group,) = watcher.get("/rules").json()["data"]["groups"]
    except (httpx.TransportError, KeyError, ValueError):
        return []
    rules: list[dict[str, Any]] = group["rules"]
    return rules if group["lastEvaluation"] > targets[0]["lastScrape"] else []


@pytest.mark.slow
def test_no_label_grows_with_what_clients_send(real_server: ServerProcess) -> None:
    """B59 (vi): paths, models, users, priorities, keys, tenants, salts and fields that nobody has heard of."""
    rng = random.Random(0)

    def hostile(client: httpx.Client, round_: int) -> None:
        for number in range(70):
            word = f"zz{round_}x{number}"
            client.get(f"/{word}/{uuid.uuid4()}")
            client.post(f"/v1/{word}", json={})
            client.post("/v1/completions", json={"model": word, "prompt": "a", "max_tokens": 1})
            body = {
                "prompt": [1],
                "max_tokens": 1,
                "user": word,
                "cache_salt": word,
                "priority": rng.randint(-(2**40), 2**40),
                word: word,
            }
            headers = {
                "X-Tenant-Id": word,
                "Authorization": f"Bearer {word}",
                "X-Request-Id": word,
                "User-Agent": word,
            }
            client.post("/v1/completions", json=body, headers=headers)
            client.post("/v1/completions", json={"prompt": [1], "max_tokens": 1, rng.choice(list(body)): {word: 1}})
            chat = {"messages": [{"role": word, "content": word}], "max_tokens": 1}
            client.post("/v1/chat/completions", json=chat, headers=headers)

    with real_server.client() as client:
        hostile(client, 0)
        first = label_sets(wait_idle(client))
        hostile(client, 1)
        page = wait_idle(client)
    assert label_sets(page) == first, "a second flood adds nothing"
    tenants = by_label(page, "octavo:tenant_prompt_tokens", "tenant")
    assert len(tenants) <= 65
    assert "other" in tenants
    foreign = {
        (name, label, text)
        for name, labels in label_sets(page)
        for label, text in labels
        if "zz" in text and label != "tenant"
    }
    assert not foreign
    assert len(first) < 700
