"""The page as a user sees and operates it in a browser."""

import re

import pytest
from playwright.async_api import Browser, Page, expect

from extender.features.status.reports import LoggedDecision
from extender.look.manifests import READ
from extender.look.page import Broadcast
from serried.api.names import GroupKey
from tests.support.browser import Scheme, find_accessibility_defects, open_page, take_picture
from tests.support.budgets import BudgetBuilder, budget
from tests.support.builders import node, pod
from tests.support.extender_harness import SCHEDULER, Harness, gang, members, small_nodes
from tests.support.page_stage import (
    BLOCK,
    RACK,
    ZONE,
    DecisionRecorder,
    ExampleCluster,
    example_nodes,
    make_broadcast,
    make_world,
    serving,
)

VIEWS = {
    "gangs": "#/gangs",
    "waiting-gang": "#/gangs/language/train-llm-6cfb954c4f",
    "preempting-gang": "#/gangs/language/urgent-eval",
    "running-gang": "#/gangs/vision/resnet-5f6d8b9c4-r0-0",
    "decisions": "#/decisions",
    "what-if": "#/whatif",
}


COUNT_PIXELS = """() => {
  const canvas = document.getElementById("canvas");
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const seen = new Map();
  for (let at = 0; at < data.length; at += 4) {
    const colour = data.slice(at, at + 3).join();
    seen.set(colour, (seen.get(colour) ?? 0) + 1);
  }
  const pen = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const style = getComputedStyle(document.documentElement);
  const count = (name) => {
    pen.fillStyle = style.getPropertyValue(`--map-${name}`).trim();
    pen.fillRect(0, 0, 1, 1);
    return seen.get(pen.getImageData(0, 0, 1, 1).data.slice(0, 3).join()) ?? 0;
  };
  return Object.fromEntries(["used", "planned", "kept", "ending"].map((name) => [name, count(name)]));
}"""
"""Counts the pixels of the map in the colour of each state of a node."""


NOTE_LABELS = """
  globalThis.labels = [];
  const fill = CanvasRenderingContext2D.prototype.fillText;
  CanvasRenderingContext2D.prototype.fillText = function (text, ...rest) {
    labels.push(text);
    fill.call(this, text, ...rest);
  };
"""
"""Records the texts that are drawn on the map in ``labels``."""


async def reload_marker(page: Page) -> bool:
    """Return whether the page has not been loaded again since the test marked it."""
    return bool(await page.evaluate("globalThis.marked === true"))


async def test_why_a_gang_waits_is_the_first_thing_that_is_seen(page: Page) -> None:
    first = page.locator(".gangs > li").first
    await expect(first).to_contain_text("language/job/train-llm")
    await expect(first.locator(".facts")).to_have_text("waits 5 min · one rack · train-llm-6cfb954c4f")
    await expect(first).to_contain_text(
        "NoDomainFits 16 members do not fit into any domain of topology.serried.dev/rack"
    )
    await first.get_by_role("link").click()
    await expect(page.get_by_role("heading", name="language/job/train-llm")).to_be_focused()
    article = page.get_by_role("article", name="One gang")
    await expect(article).to_contain_text("Number 1 of 2 in the queue")
    await expect(article).to_contain_text(
        "Serried keeps 16 nodes of rack-0 for this gang. The gang is expected to fit in 55 min"
    )
    await expect(article).to_contain_text("16 members together in one rack")


async def test_what_would_make_a_gang_fit_and_how_far_each_rack_is_from_holding_it(page: Page, url: str) -> None:
    await page.goto(f"{url}#/gangs/language/train-llm-6cfb954c4f")
    article = page.get_by_role("article", name="One gang")
    advice = article.locator(".advice")
    await expect(advice.get_by_role("listitem").first).to_have_text(
        "Ask for 18 cpu instead of 24; the gang would run in rack-11"
    )
    table = article.get_by_role("region", name="Domains")
    await expect(table.get_by_role("row").nth(1)).to_contain_text("rack-11")
    await expect(table.get_by_role("row").nth(1)).to_contain_text("9 of 16")
    await expect(table.get_by_role("row").nth(1)).to_contain_text("cpu 11 nodes")
    await expect(article.locator(".timeline")).to_contain_text("its quorum exists")
    await advice.get_by_role("button", name="Look again").click()
    await expect(advice.get_by_role("listitem")).to_have_count(4)


async def test_times_are_by_the_clock_of_the_reader_and_from_now_also_in_a_reason(browser: Browser, url: str) -> None:
    async with open_page(browser, f"{url}#/gangs/language/train-llm-6cfb954c4f", zone="Asia/Kolkata") as (page, _):
        article = page.get_by_role("article", name="One gang")
        await expect(article.locator(".reason")).to_contain_text("expected to fit in 55 min (05:11:00)")
        await expect(article.locator(".timeline li").first).to_contain_text("04:10:00")
        await expect(article).not_to_contain_text("2023-11-14T")
        await page.get_by_role("link", name="Decisions").click()
        await expect(page.locator(".decisions time").first).to_have_text("04:15:20")


async def test_the_decisions_about_a_gang_are_told_and_older_ones_on_demand(
    page: Page, url: str, world: Harness
) -> None:
    assert isinstance(world.heard, DecisionRecorder)
    group = GroupKey("bio", "dock-ligands")
    world.heard.decisions[:0] = [
        LoggedDecision("2023-11-14T20:00:00Z", group, "Planning", f"try {n}") for n in range(30)
    ]
    await page.goto(f"{url}#/gangs/bio/dock-ligands")
    rows = page.locator(".history > li")
    await expect(rows).to_have_count(10)
    await expect(rows.first).to_contain_text("QuorumMissing 5 of 8 members exist")
    await page.get_by_role("button", name="Show older ones").click()
    await expect(rows).to_have_count(31)
    await expect(rows.last).to_contain_text("20:00:00")


async def test_the_commands_that_say_more_of_a_gang_are_there_to_be_copied(page: Page, url: str) -> None:
    await page.goto(f"{url}#/gangs/language/train-llm-6cfb954c4f")
    commands = page.locator(".commands code")
    await expect(commands).to_have_text(
        [
            "kubectl serried explain job/train-llm -n language",
            "kubectl serried whatif --group job/train-llm -n language",
            "kubectl serried decisions --group job/train-llm -n language",
            "kubectl describe job/train-llm -n language",
            "kubectl describe podgroups.scheduling.serried.dev train-llm-6cfb954c4f -n language",
        ]
    )
    await page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    button = page.get_by_role("button", name="Copy: kubectl serried explain")
    await button.click()
    await expect(page.locator(".commands button").first).to_contain_text("Copied")
    assert await page.evaluate("navigator.clipboard.readText()") == "kubectl serried explain job/train-llm -n language"


async def test_the_gate_of_a_member_is_named(page: Page, url: str, world: Harness) -> None:
    gated = pod("dock-ligands-5").namespace("bio").scheduler(SCHEDULER).in_group("dock-ligands")
    world.add(gated.gate("example.com/quota"))
    await page.goto(f"{url}#/gangs/bio/dock-ligands")
    members = page.get_by_role("region", name="Members")
    await expect(members.get_by_role("row", name=re.compile("dock-ligands-5"))).to_contain_text(
        "Gated: example.com/quota"
    )


async def test_who_has_to_go_for_a_gang_is_named(page: Page, url: str) -> None:
    await page.goto(f"{url}#/gangs/language/urgent-eval")
    article = page.get_by_role("article", name="One gang")
    await expect(article.get_by_role("heading", name="Pods that are evicted")).to_be_visible()
    await expect(article).to_contain_text(re.compile(r"\d+ pods of lower priority have to end in rack-\d+:"))
    await expect(article.locator("ul.names").get_by_role("listitem").first).to_contain_text("/")


@pytest.mark.parametrize(
    ("budgets", "scheduler", "cpu", "said"),
    [
        pytest.param(
            [budget("web").selecting(app="web")],
            SCHEDULER,
            1,
            "No eviction would help in the cluster. Obstacle: protection"
            " (2 pods: their PodDisruptionBudgets do not allow it).",
            id="a budget",
        ),
        pytest.param(
            [],
            "default-scheduler",
            1,
            "No eviction would help in the cluster. Obstacle: protection"
            " (2 pods: another scheduler serves these pods, and would take the freed resources).",
            id="another scheduler",
        ),
        pytest.param(
            [], SCHEDULER, 4, "No eviction would help in the cluster. Obstacle: room.", id="the size of the nodes"
        ),
    ],
)
async def test_what_is_in_the_way_of_evictions_is_named(
    browser: Browser, budgets: list[BudgetBuilder], scheduler: str, cpu: int, said: str
) -> None:
    world = make_world()
    web = [pod(f"web-{host}").cpu(2).on(host).label("app", "web").scheduler(scheduler) for host in ("n1", "n2")]
    coming = [each.cpu(cpu).priority(1000) for each in members(2)]
    await world.add(*small_nodes(2), *web, *budgets, gang(2).priority(1000), *coming).run_until_idle()
    async with (
        serving(world, make_broadcast(world)) as url,
        open_page(browser, f"{url}#/gangs/default/g") as (page, errors),
    ):
        await expect(page.get_by_role("article", name="One gang")).to_contain_text(said)
        assert errors == []
    await world.close()


async def test_a_gang_is_found_and_opened_by_keyboard_alone(page: Page) -> None:
    await page.keyboard.press("/")
    await page.keyboard.type("quorummissing")
    rows = page.locator(".gangs > li")
    await expect(rows).to_have_count(1)
    link = rows.first.get_by_role("link")
    for _ in range(10):
        await page.keyboard.press("Tab")
        if await link.evaluate("link => link === document.activeElement"):
            break
    await expect(link).to_be_focused()
    assert await link.evaluate("link => getComputedStyle(link).outlineStyle") == "solid"
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", name="bio/dock-ligands")).to_be_focused()
    await page.go_back()
    await expect(page.get_by_role("searchbox")).to_have_value("quorummissing")


async def test_up_and_down_go_from_gang_to_gang(page: Page) -> None:
    links = page.locator(".gangs > li .gang-head a")
    await links.first.focus()
    await page.keyboard.press("ArrowDown")
    await expect(links.nth(1)).to_be_focused()
    await page.keyboard.press("ArrowUp")
    await expect(links.first).to_be_focused()


@pytest.mark.parametrize(
    ("chip", "names"),
    [
        pytest.param(
            "Waiting", ["language/job/train-llm", "vision/job/hyper-sweep", "bio/dock-ligands"], id="who waits"
        ),
        pytest.param("Broken", ["language/ranker"], id="who is broken"),
        pytest.param(
            "Planned", ["bio/align-genome", "language/distil", "language/urgent-eval"], id="who is planned, by name"
        ),
    ],
)
async def test_gangs_are_chosen_by_how_they_stand(page: Page, chip: str, names: list[str]) -> None:
    await page.get_by_role("button", name=re.compile(chip)).click()
    await expect(page.locator(".gangs > li .gang-head a")).to_have_text(names)
    await expect(page.get_by_role("button", name=re.compile(chip))).to_have_attribute("aria-pressed", "true")
    await expect(page.locator(".gangs > li .badge")).to_have_text([chip] * len(names))


async def test_decisions_are_filtered_by_reason_and_by_words(page: Page) -> None:
    await page.get_by_role("link", name="Decisions").click()
    log = page.locator(".decisions > li")
    await expect(log.first).to_contain_text("vision/job/hyper-sweep")
    await page.get_by_role("combobox", name="Reason").select_option("Planned")
    await expect(log).to_have_count(2)
    await page.get_by_role("searchbox").fill("genome")
    await expect(log).to_have_count(1)
    await expect(log).to_contain_text(
        "bio/align-genome Planned kube-scheduler still has to schedule 40 planned members"
    )
    await expect(page.get_by_role("status").filter(has_text="decisions")).to_contain_text("1 of the last")
    await page.get_by_role("combobox", name="Reason").select_option("")
    await page.get_by_role("searchbox").fill("3fa1c2-0")
    await expect(log).to_have_count(1)
    await expect(log).to_contain_text("Scheduled")


async def test_a_job_is_asked_about_and_nothing_is_created(page: Page, world: Harness) -> None:
    known = (len(world.store.pods), len(world.store.groups), len(world.heard.verdicts))
    await page.get_by_role("link", name="What if").click()
    await expect(page.locator("#manifests-help")).to_contain_text(f"Serried reads {READ}, as YAML or JSON")
    await page.get_by_role("button", name="Use an example").click()
    await page.get_by_role("button", name="Would it fit?").click()
    answer = page.locator(".answer")
    await expect(answer).to_contain_text("Job default/train")
    await expect(answer.locator(".badge")).to_have_text("Fits")
    await expect(answer).to_contain_text("8 of 8 members fit")
    assert (len(world.store.pods), len(world.store.groups), len(world.heard.verdicts)) == known


async def test_a_gang_that_waits_is_asked_about_in_a_larger_cluster(page: Page, url: str) -> None:
    await page.goto(f"{url}#/gangs/language/train-llm-6cfb954c4f")
    await page.get_by_role("link", name="What if …").click()
    await expect(page.get_by_label("Or gangs that exist")).to_have_value("language/job/train-llm")
    ask = page.get_by_role("button", name="Would it fit?")
    await ask.click()
    answer = page.locator(".answer")
    await expect(answer.locator(".badge")).to_have_text("Does not fit")
    await page.get_by_label("Add nodes").fill("16*node-230")
    await ask.click()
    await expect(answer.locator(".badge")).to_have_text("Fits")
    await expect(answer).to_contain_text("16 of 16 members fit into rack-11")


async def test_a_question_about_another_cluster_is_answered_with_what_it_was_about(page: Page, url: str) -> None:
    await page.goto(f"{url}#/whatif/language/train-llm-6cfb954c4f")
    await page.get_by_label("Drain these nodes").fill("node-000")
    await page.get_by_label("Leave these gangs out").fill("vision/job/resnet")
    await page.get_by_role("button", name="Would it fit?").click()
    answer = page.locator(".answer")
    await expect(answer).to_contain_text(re.compile(r"without node-000 \(\d+ pods? of it would need another node\)"))
    await expect(answer).to_contain_text("without gang vision/job/resnet")


async def test_a_question_that_cannot_be_understood_is_answered_with_what_to_do(browser: Browser, url: str) -> None:
    async with open_page(browser, f"{url}#/whatif") as (page, errors):
        await page.get_by_label("Manifests", exact=True).fill("kind: Secret")
        await page.get_by_role("button", name="Would it fit?").click()
        await expect(page.locator(".answer .reason.broken")).to_contain_text("Secret")
        await expect(page.get_by_role("button", name="Would it fit?")).to_be_enabled()
        assert [text for text in errors if "status of 400" not in text] == []


async def test_from_the_filter_down_goes_to_the_first_hit_and_enter_opens_it(page: Page) -> None:
    for key, heading in (("ArrowDown", False), ("Enter", True)):
        await page.keyboard.press("/")
        await page.keyboard.type("distil")
        await expect(page.locator(".gangs > li")).to_have_count(1)
        await page.keyboard.press(key)
        if heading:
            await expect(page.get_by_role("heading", name="language/distil")).to_be_focused()
        else:
            await expect(page.get_by_role("link", name="language/distil")).to_be_focused()
            await page.get_by_role("searchbox").fill("")


async def test_members_stand_in_the_order_of_their_ranks(page: Page, url: str, world: Harness) -> None:
    late = pod("ranker-3").namespace("language").cpu(8).scheduler(SCHEDULER).in_group("ranker")
    world.add(late)
    world.schedule_groups()
    await world.run_tasks()
    await page.goto(f"{url}#/gangs/language/ranker")
    names = page.get_by_role("region", name="Members").get_by_role("rowheader")
    await expect(names).to_have_text([f"ranker-{rank}" for rank in (0, 1, 2, 3, 4, 5, 6, 7, 9, 10)])


async def test_what_happens_is_shown_without_a_reload(page: Page, world: Harness) -> None:
    await page.evaluate("globalThis.marked = true")
    row = page.locator(".gangs > li").filter(has_text="dock-ligands")
    await expect(row).to_contain_text("5 of 8 members exist")
    for index in range(5, 8):
        world.add(pod(f"dock-ligands-{index}").namespace("bio").cpu(4).scheduler(SCHEDULER).in_group("dock-ligands"))
    world.schedule_groups()
    await world.run_tasks()
    await expect(row.locator(".badge")).to_have_text("Planned")
    await expect(row).to_contain_text("Planned kube-scheduler still has to schedule 8 planned members")
    await page.get_by_role("link", name="Decisions").click()
    await expect(page.locator(".decisions > li").first).to_contain_text("bio/dock-ligands Planned")
    assert await reload_marker(page)


async def test_a_connection_that_breaks_comes_back_by_itself(page: Page, world: Harness, broadcast: Broadcast) -> None:
    await page.evaluate("globalThis.marked = true")
    await broadcast.close()
    world.add(node("node-999").label(ZONE, "zone-b").label(RACK, "rack-11"))
    await expect(page.locator("#sums")).to_contain_text("241")
    await expect(page.locator("#link")).to_have_text("live")
    assert await reload_marker(page)


async def test_the_map_is_walked_with_the_arrows_and_told_aloud(page: Page) -> None:
    canvas = page.get_by_role("application")
    said = page.locator("#map-said")
    await canvas.focus()
    await expect(said).to_contain_text("node-000, zone-a / block-0 / rack-0, one of 20 nodes:")
    await page.keyboard.press("ArrowRight")
    await expect(said).to_contain_text("node-001")
    await page.keyboard.press("ArrowDown")
    await expect(said).to_contain_text("node-020, zone-a / block-0 / rack-1")
    await page.keyboard.press("Enter")
    card = page.get_by_role("region", name="Node", exact=True)
    await expect(card).to_be_focused()
    await expect(card.get_by_role("row", name=re.compile("^cpu"))).to_contain_text("32")
    await page.keyboard.press("Escape")
    await expect(card).to_be_hidden()
    await expect(canvas).to_be_focused()


async def test_what_is_used_planned_kept_and_ending_is_drawn_on_the_map(page: Page) -> None:
    drawn = await page.evaluate(COUNT_PIXELS)
    assert all(drawn.values()), drawn
    assert drawn["used"] > drawn["planned"] > drawn["ending"], drawn


async def test_where_nobody_plans_only_what_is_used_is_drawn(browser: Browser) -> None:
    world = make_world()
    example = ExampleCluster(world)
    world.add(*example_nodes(), *example.plain_pods())
    async with (
        serving(world, make_broadcast(world)) as url,
        open_page(browser, url) as (page, errors),
    ):
        drawn = await page.evaluate(COUNT_PIXELS)
        assert drawn.pop("used") > 0
        assert set(drawn.values()) == {0}, drawn
        assert errors == []


@pytest.mark.parametrize("racks", [pytest.param(5, id="five racks"), pytest.param(0, id="no racks")])
async def test_few_nodes_are_drawn_as_large_as_there_is_room_with_all_their_levels(
    browser: Browser, racks: int
) -> None:
    world = make_world()
    for index in range(50):
        built = node(f"node-{index:02}").cpu(32).label(ZONE, "zone-a").label(BLOCK, "block-0")
        world.add(built.label(RACK, f"rack-{index % racks}") if racks else built)
    async with (
        serving(world, make_broadcast(world)) as url,
        open_page(browser, url, width=1400, height=1000) as (page, errors),
    ):
        await page.add_init_script(NOTE_LABELS)
        await page.reload()
        await page.wait_for_selector("body[data-ready]")
        assert await page.evaluate("document.getElementById('canvas').clientHeight") > 300
        assert set(await page.evaluate("labels")) == {"zone-a / block-0", *(f"rack-{index}" for index in range(racks))}
        await page.locator("#canvas").hover(position={"x": 40, "y": 75})
        await expect(page.locator("#tip")).to_contain_text("zone-a / block-0")
        assert errors == []


async def test_the_map_is_pointed_at(page: Page) -> None:
    await page.locator("#canvas").hover(position={"x": 30, "y": 85})
    await expect(page.locator("#tip")).to_contain_text("kept for the first gang in the queue")


async def test_the_table_says_what_the_map_shows(page: Page) -> None:
    await page.get_by_text("Domains as a table").click()
    table = page.get_by_role("region", name="Domains as a table")
    await expect(table.get_by_role("row")).to_have_count(13)
    await expect(table.get_by_role("row", name=re.compile("rack-0"))).to_contain_text(re.compile(r"20.*16\s*0$"))


async def test_who_uses_a_screen_reader_hears_landmarks_and_headings(page: Page) -> None:
    for role in ("banner", "main", "navigation", "application"):
        await expect(page.get_by_role(role)).to_have_count(1)
    await expect(page.get_by_role("navigation").get_by_role("link", name="Gangs")).to_have_attribute(
        "aria-current", "page"
    )
    await expect(page.get_by_role("heading", level=1)).to_have_text("Serried")


async def test_text_is_never_markup(page: Page, world: Harness) -> None:
    assert isinstance(world.heard, DecisionRecorder)
    text = "Broken: <img src=x onerror=\"document.body.dataset.hit = 'yes'\"><b>bold</b>"
    world.heard.decisions.append(LoggedDecision("2026-01-01T00:00:00Z", GroupKey("bio", "<i>name"), "Broken", text))
    await page.get_by_role("link", name="Decisions").click()
    await expect(page.locator(".decisions > li").first).to_contain_text("<img src=x")
    assert await page.evaluate("document.body.dataset.hit") is None


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
async def test_everybody_can_use_every_view(browser: Browser, url: str, scheme: Scheme, width: int) -> None:
    async with open_page(browser, url, scheme=scheme, width=width) as (page, errors):
        for name, view in VIEWS.items():
            await page.goto(f"{url}{view}")
            await expect(
                page.locator(".gang-body > section, .gangs > li, .decisions > li, .whatif").first
            ).to_be_visible()
            await take_picture(page, f"{name}-{scheme}-{width}")
            assert await find_accessibility_defects(page) == ""
            assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{name} is too wide"
        assert errors == []


async def test_a_standby_says_that_another_one_leads(page: Page, world: Harness) -> None:
    notice = page.locator("#notice")
    await expect(notice).to_be_hidden()
    world.term.active = False
    await expect(notice).to_have_text("This extender does not lead: another extender plans.")


async def test_an_empty_cluster_says_what_to_do(browser: Browser) -> None:
    world = make_world()
    async with (
        serving(world, make_broadcast(world)) as url,
        open_page(browser, url) as (page, errors),
    ):
        await expect(page.locator(".empty")).to_contain_text("There is no gang yet")
        assert errors == []
