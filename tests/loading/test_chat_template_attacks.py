"""Chat templates as an attack (case B58)."""

import asyncio
import gc
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
import uvloop

from octavo.core.errors import InvalidRequestError
from octavo.loading.chat_template import RENDER_NUM_CHARS, ChatTemplate

MESSAGES = [{"role": "user", "content": "hello"}]
GOOD = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"


def _refusal(source: str, messages: list[dict[str, Any]] = MESSAGES, **options: Any) -> str:
    began = time.monotonic()
    with pytest.raises(InvalidRequestError) as caught:
        ChatTemplate(source, {"bos_token": "<s>"}).render(messages, **options)
    assert time.monotonic() - began < 5
    return str(caught.value)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__class__.__base__.__subclasses__() }}",
        "{{ raise_exception.__globals__['sys'] }}",
        "{{ cycler.__init__.__globals__.os }}",
        "{{ (messages|attr('__class__')).__base__ }}",
    ],
)
def test_no_way_to_pythons_insides(source: str) -> None:
    assert "unsafe" in _refusal(source) or "undefined" in _refusal(source)


def test_no_file_is_written(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    for write in (
        f"{{{{ cycler.__init__.__globals__.os.system('touch {marker}') }}}}",
        f"{{{{ ''.__class__.__mro__[1].__subclasses__()[0]('{marker}', 'w') }}}}",
        f"{{{{ open('{marker}', 'w') }}}}",
        f"{{% set x = lipsum.__globals__['os'].popen('touch {marker}') %}}",
    ):
        _refusal(write)
    assert not marker.exists()


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
        "{{ 10 ** 10000000000 }}",
    ],
    ids=["loops", "one huge computation"],
)
def test_time_is_bounded(source: str) -> None:
    assert "longer than 3 s" in _refusal(source)


def test_ranges_are_bounded() -> None:
    assert "Range too big" in _refusal("{% for i in range(1000000000) %}{% endfor %}")


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'a' * 10000000000 }}",
        "{{ 'a' | center(10000000000) }}",
        "{{ '%10000000000d' % 1 }}",
        "{% set ns = namespace(x='aaaaaaaaaa') %}{% for i in range(40) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    ],
)
def test_memory_is_bounded(source: str) -> None:
    own = psutil.Process()
    before = own.memory_info().rss
    refusal = _refusal(source)
    assert "too much memory" in refusal or "longer than 3 s" in refusal  # the machine may be slow at filling it
    assert own.memory_info().rss - before < 100 << 20


def test_output_is_bounded() -> None:
    refusal = _refusal("{% for i in range(99999) %}{{ 'a' * 10000 }}{% endfor %}")
    assert f"more than {RENDER_NUM_CHARS} characters" in refusal


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{% include 'other.jinja' %}", "no loader"),
        ("{% import 'other.jinja' as other %}", "no loader"),
        ("{{ 1 | nofilter }}", "No filter named 'nofilter'"),
        ("{% for", "line 1"),
        ("{{ undefined_name.x }}", "'undefined_name' is undefined"),
        ("{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(1) }}", "RecursionError"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
    ],
)
def test_broken_templates(source: str, words: str) -> None:
    assert words in _refusal(source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.append({'role': 'system', 'content': 'x'}) }}",
        "{{ messages.clear() }}",
        "{{ messages[0].update({'content': 'x'}) }}",
        "{{ messages[0].pop('content') }}",
        "{% set messages[0] = 1 %}",
    ],
)
def test_messages_cannot_be_changed(source: str) -> None:
    messages = [{"role": "user", "content": "hello"}]
    _refusal(source, messages)
    assert messages == MESSAGES


@pytest.mark.parametrize("name", ["tokenize", "messages", "chat_template", "tools", "add_generation_prompt"])
def test_reserved_names_are_refused(name: str) -> None:
    assert f"cannot set {name}" in _refusal(GOOD, template_kwargs={name: "{{ 1 }}"})


def test_jinja_in_data_is_text() -> None:
    messages = [{"role": "user", "content": "{{ 7 * 7 }}{% raw %}"}, {"role": "{{ messages }}", "content": "{#"}]
    tools = [{"function": {"name": "{{ 7 * 7 }}"}}]
    text = ChatTemplate(GOOD + "{{ tools[0].function.name }}{{ extra }}").render(
        messages, tools=tools, template_kwargs={"extra": "{% x %}"}
    )
    assert text == "user: {{ 7 * 7 }}{% raw %}\n{{ messages }}: {#\n{{ 7 * 7 }}{% x %}"


def test_what_is_no_json_is_refused() -> None:
    assert "not plain JSON" in _refusal(GOOD, [{"role": "user", "content": b"bytes"}])


def test_others_are_served_meanwhile() -> None:
    slow = ChatTemplate("{% if messages[0].content == 'loop' %}{% for i in range(100000) %}{% for j in range(100000) %}"
                        "{% endfor %}{% endfor %}{% endif %}done")  # fmt: skip
    with ThreadPoolExecutor(2) as pool:
        stuck = pool.submit(slow.render, [{"role": "user", "content": "loop"}])
        time.sleep(0.3)
        assert slow.render(MESSAGES) == "done"
        assert not stuck.done()
        assert isinstance(stuck.exception(), InvalidRequestError)
    assert slow.render(MESSAGES) == "done"


def test_many_threads() -> None:
    template = ChatTemplate(GOOD)
    with ThreadPoolExecutor(8) as pool:
        texts = list(pool.map(lambda i: template.render([{"role": "user", "content": str(i)}]), range(100)))
    assert texts == [f"user: {i}\n" for i in range(100)]


async def test_from_a_loop_it_is_as_in_a_thread() -> None:
    for source in (GOOD, "{{ raise_exception('no') }}", "{{ 1 / 0 }}", "{{ nothing.at.all }}", "{% if %}"):
        template = ChatTemplate(source)
        found = []
        for _ in range(3):  # the first one starts a worker, the others find it idle
            try:
                found.append(await template.render_from_loop(MESSAGES))
            except InvalidRequestError as error:
                found.append(str(error))
        try:
            expected = template.render(MESSAGES)
        except InvalidRequestError as error:
            expected = str(error)
        assert found == [expected] * 3
    template = ChatTemplate(GOOD)
    for length in (1, 10_000, 60_000, 70_000, 1_000_000):  # less than a pipe holds, and more
        told = [{"role": "user", "content": length * "x"}]
        assert await template.render_from_loop(told) == template.render(told)


def test_a_worker_that_a_loop_has_asked_can_be_asked_from_a_thread() -> None:
    template = ChatTemplate(GOOD)
    template.render(MESSAGES)
    for loop_factory in (None, uvloop.new_event_loop):
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            for _ in range(3):
                assert runner.run(template.render_from_loop(MESSAGES)) == template.render(MESSAGES) == "user: hello\n"


async def test_a_loop_goes_on_beside_a_template_that_hangs_or_grows() -> None:
    templates = [
        ChatTemplate(GOOD + "{% if messages[0].content == 'now' %}" + bad + "{% endif %}")
        for bad in (
            "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
            "{{ 'x' * 10000000000 }}",
        )
    ]
    for template in templates:
        await template.render_from_loop(MESSAGES)  # so that there is an idle worker
    asked = [asyncio.create_task(each.render_from_loop([{"role": "user", "content": "now"}])) for each in templates]
    longest, last = 0.0, time.monotonic()
    while not all(task.done() for task in asked):
        await asyncio.sleep(0.01)
        longest, last = max(longest, time.monotonic() - last), time.monotonic()
    assert longest < 1.5
    assert all(isinstance(task.exception(), InvalidRequestError) for task in asked)
    assert [await each.render_from_loop(MESSAGES) for each in templates] == ["user: hello\n"] * 2


async def test_who_is_cancelled_leaves_the_worker_to_its_answer() -> None:
    template = ChatTemplate(GOOD)
    await template.render_from_loop(MESSAGES)
    children = set(psutil.Process().children())
    for content in ("secret", "another"):
        task = asyncio.create_task(template.render_from_loop([{"role": "user", "content": content}]))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    texts = await asyncio.gather(*(template.render_from_loop([{"role": "user", "content": str(i)}]) for i in range(20)))
    assert texts == [f"user: {i}\n" for i in range(20)]
    assert children <= set(psutil.Process().children())


def test_workers_end_with_their_template() -> None:
    template = ChatTemplate(GOOD)
    children = set(psutil.Process().children())
    template.render(MESSAGES)
    (worker,) = set(psutil.Process().children()) - children
    del template
    gc.collect()
    assert not worker.is_running()
