//! Every page of a small run: well-formed, accessible, its links lead somewhere, what members say is escaped; and the server
//! that shows it. What needs a browser is in `tests/browser.sh`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use muster_core::ids::MemberId;
use muster_core::manifest::Manifest;
use muster_core::manifest::fixture::tiny;
use muster_view::View;
use muster_view::document::Document;
use muster_view::export::export;
use muster_view::report::Report;
use muster_view::serve::serve;
use muster_view::site::{Purpose, ROWS, Site};
use muster_view::story::{
    BanLine, Counted, Happening, HarmLine, MemberLine, Phases, RoundLine, SampleLine, Story,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

const HOSTILE: &str = "<script>alert('1')</script>\"&";
/// Elements without an end.
const VOID: [&str; 8] = ["meta", "link", "img", "br", "hr", "input", "rect", "source"];

fn manifest() -> Arc<Manifest> {
    Arc::new(tiny(MemberId([1; 32]), MemberId([2; 32]), 150, 4))
}

fn member(number: u8) -> MemberLine {
    let id = MemberId([number; 32]);
    MemberLine {
        id: format!("{id:#}"),
        short: id.to_string(),
        // No ledger takes such a name; a page must not depend on that.
        name: if number == 2 { HOSTILE.into() } else { format!("member {number}") },
        role: if number == 0 { "verifier" } else { "node" },
        admitted: number.into(),
        inviter: (number > 5).then(|| format!("{:#}", MemberId([number / 2; 32]))),
        founder: true,
        standing: if number == 3 { "banned" } else { "active" },
        rounds: 5,
        leaves: u64::from(number),
        verified: 1,
        audited: 0.05,
        ..MemberLine::default()
    }
}

/// More of everything than fits on a page.
fn story() -> Story {
    let mut story = Story::default();
    story.enlist((0..120).map(member).collect());
    let id = |number: u8| format!("{:#}", MemberId([number; 32]));
    story.rounds = (0..150)
        .map(|round| RoundLine {
            round,
            height: u64::from(round),
            seats: 4,
            committed: 4,
            leaves: 16,
            tokens: 512,
            loss: 3.0,
            parts: 4,
            lost: round % 2,
            state: "ab".repeat(32),
            bytes: Some(1_000),
            phases: Phases {
                began: None,
                freeze: Some(1.0),
                inputs: Some(2.0),
                results: None,
                seconds: Some(3.0),
            },
            counted: (1..4).map(|member| Counted { member, leaves: 4, weight: 4 }).collect(),
            ..RoundLine::default()
        })
        .collect();
    story.bans.push(BanLine {
        height: 9,
        member: id(3),
        round: 4,
        effective: 6,
        finding: "leaf mismatch",
        evidence: "cd".repeat(32),
        accuser: id(0),
    });
    story.harm.push(HarmLine { member: id(3), round: 4, wrong: "its contribution".into(), moved: Some(0.1) });
    story.restarts.push((8, None));
    story.happenings.push_back(Happening {
        height: None,
        round: 4,
        member: Some(id(2)),
        text: format!("left behind {HOSTILE}"),
    });
    story
}

fn site(purpose: Purpose) -> Site {
    Site::new(View::told(manifest(), story()), purpose)
}

#[test]
fn an_auditor_finds_the_line_to_begin_with() {
    let run = format!("{:#}@{:#}@", manifest().run(), manifest().steward);
    for page in ["bans.html", "manifest.html"] {
        let page = site(Purpose::Live).page(page, "").expect("a page");
        let text = String::from_utf8_lossy(&page.body).into_owned();
        assert!(text.contains(&format!("muster-verifier observe {run}HOST:PORT --data-dir DIR")), "{text}");
    }
}

/// A tag of a page: its name and its attributes.
struct Tag {
    name: String,
    attributes: BTreeMap<String, String>,
    text_after: String,
}

/// The tags of a page, which must be closed in order.
fn tags(path: &str, html: &str) -> Vec<Tag> {
    let (mut tags, mut open): (Vec<Tag>, Vec<String>) = (Vec::new(), Vec::new());
    for piece in html.split('<').skip(1) {
        let (tag, text) = piece.split_once('>').unwrap_or_else(|| panic!("{path}: an open tag: {piece}"));
        if tag.starts_with('!') {
            continue;
        }
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop().as_deref(), Some(name), "{path}: </{name}> closes something else");
            continue;
        }
        let (name, rest) = tag.split_once(' ').unwrap_or((tag, ""));
        let mut attributes = BTreeMap::new();
        let mut rest = rest.trim_end_matches('/').trim();
        while !rest.is_empty() {
            let end = rest.find(['=', ' ']).unwrap_or(rest.len());
            let (key, after) = rest.split_at(end);
            let (value, after) = match after.strip_prefix("=\"") {
                Some(quoted) => quoted.split_once('"').unwrap_or_else(|| panic!("{path}: {tag}")),
                None => ("", after),
            };
            assert!(attributes.insert(key.to_owned(), value.to_owned()).is_none(), "{path}: {tag}");
            rest = after.trim_start();
        }
        if !VOID.contains(&name) {
            open.push(name.to_owned());
        }
        tags.push(Tag { name: name.to_owned(), attributes, text_after: text.trim().to_owned() });
    }
    assert!(open.is_empty(), "{path}: {open:?} stay open");
    tags
}

/// Where a link of a page leads, from the root of the site.
fn target(page: &str, link: &str) -> String {
    let link = link.split(['?', '#']).next().unwrap_or_default();
    match (link.strip_prefix("../"), page.rsplit_once('/')) {
        (Some(from_root), Some(_)) => from_root.to_owned(),
        (None, Some((folder, _))) => format!("{folder}/{link}"),
        _ => link.to_owned(),
    }
}

fn check(site: &Site, path: &str) -> BTreeSet<String> {
    let page = site.page(path, "").unwrap_or_else(|| panic!("{path} is not there"));
    let html = String::from_utf8(page.body.to_vec()).expect("text");
    assert!(!html.contains("alert('1')") && !html.contains("<script>"), "{path}: not escaped");
    let tags = tags(path, &html);
    let of = |name: &str| tags.iter().filter(|tag| tag.name == name).collect::<Vec<_>>();
    assert_eq!((of("h1").len(), of("main").len(), of("title").len()), (1, 1, 1), "{path}");
    assert_eq!(of("html")[0].attributes["lang"], "en");
    let mut ids = BTreeSet::new();
    let mut links = BTreeSet::new();
    let mut level = 1;
    for tag in &tags {
        for (key, value) in &tag.attributes {
            assert!(!key.starts_with("on") && key != "style", "{path}: {key} in <{}>", tag.name);
            if key == "id" {
                assert!(ids.insert(value.clone()), "{path}: {value} twice");
            }
            if matches!(key.as_str(), "href" | "src" | "srcset" | "data-chart") && !value.starts_with('#') {
                assert!(!value.contains(':') && !value.starts_with('/'), "{path} leads to {value}");
                links.insert(target(path, value));
            }
        }
        match tag.name.as_str() {
            "img" => assert!(!tag.attributes["alt"].is_empty(), "{path}: an image without words"),
            "a" => assert!(!tag.text_after.is_empty(), "{path}: a link without words"),
            "th" => assert_eq!(tag.attributes["scope"], "col", "{path}"),
            "table" => assert!(html.contains("<caption>"), "{path}"),
            "script" => {
                let from = &tag.attributes["src"];
                assert!(from.ends_with("live.js") || from.ends_with("charts.js"), "{path}: a script within");
            }
            "td" => assert!(tag.attributes.contains_key("data-label"), "{path}: a card without names"),
            "h2" | "h3" => {
                let next: u32 = tag.name[1..].parse().expect("a level");
                assert!(next <= level + 1, "{path}: a heading is left out");
                level = next;
            }
            _ => {}
        }
    }
    links
}

#[test]
fn pages_are_well_formed_and_accessible_and_lead_somewhere() {
    for purpose in [Purpose::Live, Purpose::Files] {
        let site = site(purpose);
        let (mut seen, mut ahead) = (BTreeSet::new(), vec!["index.html".to_owned()]);
        while let Some(path) = ahead.pop() {
            if !seen.insert(path.clone()) {
                continue;
            }
            if path.ends_with(".html") {
                // Records of a story that is told are nowhere.
                let links = check(&site, &path).into_iter().filter(|link| !link.starts_with("record/"));
                ahead.extend(links);
            } else {
                assert!(site.page(&path, "").is_some(), "{path} is not there");
            }
        }
        let all = [
            "rounds-2.html",
            "members-2.html",
            "board-2.html",
            "charts/loss.svg",
            "charts/loss-small.svg",
            "charts/loss.json",
            "data/weight.csv",
            "style.css",
            "charts.js",
        ];
        all.iter().for_each(|path| assert!(seen.contains(*path), "nothing leads to {path}"));
        assert_eq!(seen.contains("live.js"), purpose == Purpose::Live);
    }
}

#[test]
fn charts_say_where_false_work_began_and_who_was_banned() {
    let site = site(Purpose::Live);
    let chart: serde_json::Value =
        serde_json::from_slice(&site.page("charts/loss.json", "").unwrap().body).unwrap();
    let marks: Vec<(f64, &str, &str)> = chart["marks"]
        .as_array()
        .unwrap()
        .iter()
        .map(|mark| {
            (mark["at"].as_f64().unwrap(), mark["kind"].as_str().unwrap(), mark["text"].as_str().unwrap())
        })
        .collect();
    assert_eq!(
        marks,
        [
            (4.0, "cheat", "member 3: the first work that was found to be false"),
            (6.0, "ban", "member 3 is banned: leaf mismatch in round 4"),
            (8.0, "restart", "the steward is back"),
        ]
    );
    // Names of lines and marks are words of the page, and no part of the picture that they would cover.
    let page = String::from_utf8(site.page("index.html", "").unwrap().body.to_vec()).unwrap();
    assert!(page.contains("<li class=\"mark ban\">ban</li>"), "{page}");
    let picture = String::from_utf8(site.page("charts/weight.svg", "").unwrap().body.to_vec()).unwrap();
    assert!(!picture.contains("member 1"), "{picture}");
}

/// A page of a site that a member's program shows.
fn page_of(me: u8, story: Story, path: &str) -> String {
    let mut view = View::told(manifest(), story);
    Arc::get_mut(&mut view).expect("nobody else has it").me = Some(MemberId([me; 32]));
    let page = Site::new(view, Purpose::Live).page(path, "").expect("a page");
    String::from_utf8(page.body.to_vec()).expect("text")
}

#[test]
fn the_own_machine_comes_first() {
    let own = "member 117";
    for path in ["members.html", "board.html"] {
        let page = page_of(117, story(), path);
        let rows = page.split("<tbody").nth(1).unwrap().split("</tbody>").next().unwrap();
        let first = rows.split("</tr>").next().unwrap();
        assert!(
            first.contains(own) && first.contains("(you)") && first.contains("class=\"own\""),
            "{path}: {first}"
        );
        assert_eq!(rows.matches("(you)").count(), 1, "{path}");
    }
    let mut story = story();
    story.rounds.truncate(50);
    let facts = page_of(117, story, "index.html");
    let facts = facts.split("<dl").nth(1).unwrap().split("</dl>").next().unwrap();
    let (you, rounds) = (facts.find("You").unwrap(), facts.find("Rounds").unwrap());
    assert!(you < rounds && facts.contains("117 leaves in 5 rounds"), "{facts}");
    assert!(facts.contains("about 5 min"), "a hundred rounds of three seconds each: {facts}");
    assert!(page_of(200, self::story(), "index.html").contains("not admitted yet"));
}

#[test]
fn a_column_without_a_value_is_left_out() {
    let column = "data-label=\"Moved the round's aggregate by\"";
    let column = column.replace('\'', "&#39;");
    let page = |story: Story| page_of(1, story, "harm.html");
    assert!(page(story()).contains(&column), "{}", page(story()));
    let mut unmeasured = story();
    unmeasured.harm.iter_mut().for_each(|line| line.moved = None);
    let page = page(unmeasured);
    assert!(page.contains("its contribution") && !page.contains("Moved the round"), "{page}");
}

#[test]
fn what_the_model_writes_is_shown_the_newest_first_and_the_first_last() {
    let mut story = story();
    assert!(!page_of(1, self::story(), "index.html").contains("What the model writes"));
    for round in [0, 10, 20, 30, 40] {
        let sample = SampleLine { prompt: "<b>".into(), text: format!("text {round}") };
        story.samples.insert(round, sample);
    }
    let page = page_of(1, story, "index.html");
    let rounds: Vec<&str> =
        page.split("before round ").skip(1).map(|text| text.lines().next().unwrap()).collect();
    assert_eq!(rounds, ["40", "30", "20", "0"]);
    assert!(page.contains("&#60;b&#62;text 40"), "{page}");
}

#[test]
fn a_report_stands_alone_and_its_script_lies_beside_it() {
    let folder = tempfile::tempdir().unwrap();
    let mut plot = muster_view::site::charts::chart(&story(), "loss").unwrap();
    plot.series[0].name = HOSTILE.into();
    let mut document = Document::titled("Verdict");
    document.text("Who cheated", Vec::new());
    document.text("Who else was there", Vec::new());
    let plots = vec![("loss".into(), plot)];
    Report { of: "a run".into(), document, before: 1, plots }.write(folder.path()).unwrap();
    let html = std::fs::read_to_string(folder.path().join("report.html")).unwrap();
    assert!(!html.contains("<script>alert") && html.contains("\\u003cscript>alert"), "not escaped");
    assert_eq!(html.matches("<svg").count(), 2, "one for wide screens, one for small ones");
    let place = |words: &str| html.find(words).unwrap_or_else(|| panic!("{words}"));
    assert!(
        place("Who cheated") < place("<svg") && place("<svg") < place("Who else"),
        "charts are in between"
    );
    for file in ["charts.js", "loss.csv"] {
        assert!(
            html.contains(&format!("data/{file}")) && folder.path().join("data").join(file).is_file(),
            "{file}"
        );
    }
}

#[test]
fn what_is_not_there_is_not_made_up() {
    let site = site(Purpose::Live);
    let absent = [
        "rounds-3.html",
        "rounds-1.html",
        "rounds-0.html",
        "rounds--1.html",
        "member/00.html",
        "record/999999999999.html",
        "charts/loss.html",
        "charts/money.svg",
        "evidence/../journal.redb",
        "evidence/identity.key",
        "../../etc/passwd",
        "identity.key",
        "api/keys.json",
    ];
    absent.iter().for_each(|path| assert!(site.page(path, "").is_none(), "{path}"));
}

#[test]
fn lists_are_cut_into_pages() {
    let site = site(Purpose::Live);
    let json = |query: &str| -> serde_json::Value {
        serde_json::from_slice(&site.page("api/rounds.json", query).unwrap().body).unwrap()
    };
    let rows = |value: &serde_json::Value| value["rows"].as_array().unwrap().len();
    assert_eq!((rows(&json("")), json("")["all"].as_u64()), (ROWS, Some(150)));
    assert_eq!(rows(&json("from=140&count=1000")), 10);
    assert_eq!(rows(&json("from=99999999999999999999&count=x")), ROWS);
    assert_eq!(rows(&json("from=18446744073709551615&count=18446744073709551615")), 0);
    assert_eq!(json("from=7&count=1")["rows"][0]["round"], 7);
}

#[test]
fn a_round_in_which_nobody_counted_has_no_loss() {
    let mut story = story();
    (story.rounds[7].leaves, story.rounds[7].loss) = (0, 0.0);
    story.rounds[7].counted.clear();
    let site = Site::new(View::told(manifest(), story), Purpose::Live);
    let text = |path: &str| String::from_utf8(site.page(path, "").unwrap().body.to_vec()).unwrap();
    let csv = text("data/loss.csv");
    assert!(csv.contains("\n6,3") && csv.contains("\n8,3") && !csv.contains("\n7,"), "{csv}");
    assert!(!text("rounds-2.html").contains("0.0000"));
}

#[test]
fn pages_are_written_to_files() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("site");
    let written = export(&site(Purpose::Files), &out).unwrap();
    assert!(written > 140, "{written}");
    for file in
        ["index.html", "members-2.html", "charts/loss.svg", "data/loss.csv", "api/members.json", "style.css"]
    {
        assert!(out.join(file).is_file(), "{file}");
    }
    assert!(export(&site(Purpose::Files), &out).unwrap_err().to_string().contains("is not empty"));
}

/// What a server answers to a request as it stands.
async fn answer(address: &str, request: &str) -> String {
    let mut stream = TcpStream::connect(address).await.expect("it listens");
    stream.write_all(request.as_bytes()).await.expect("it reads");
    let mut answer = Vec::new();
    // Until it closes, or has nothing to say for a while.
    let mut buffer = [0; 4096];
    while let Ok(Ok(read @ 1..)) = timeout(Duration::from_millis(700), stream.read(&mut buffer)).await {
        answer.extend(&buffer[..read]);
    }
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_is_read_only_and_for_this_machine() {
    let pages = serve(View::told(manifest(), story()), "127.0.0.1:0").await.unwrap();
    let address = pages.url.strip_prefix("http://").unwrap().trim_end_matches('/').to_owned();
    let get =
        |path: &str, host: &str| format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    let good = answer(&address, &get("/", &address)).await;
    assert!(good.starts_with("HTTP/1.1 200") && good.contains("<h1>"), "{good}");
    for header in [
        "content-security-policy: default-src 'none';",
        "x-content-type-options: nosniff",
        "referrer-policy: no-referrer",
    ] {
        assert!(good.contains(header), "{header}");
    }
    assert!(answer(&address, &get("/members.html", "localhost:1")).await.starts_with("HTTP/1.1 200"));
    assert!(answer(&address, &get("/%2e%2e/identity.key", &address)).await.starts_with("HTTP/1.1 404"));
    for host in ["example.org", "127.0.0.1.example.org", "evil", ""] {
        let answer = answer(&address, &get("/", host)).await;
        assert!(answer.starts_with("HTTP/1.1 421"), "{host}: {answer}");
        assert!(!answer.contains("member 4"));
    }
    let posted =
        format!("POST / HTTP/1.1\r\nHost: {address}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    assert!(answer(&address, &posted).await.starts_with("HTTP/1.1 405"));
    let news = answer(&address, &get("/events", &address)).await;
    assert!(news.contains("text/event-stream") && news.contains("data: "), "{news}");
    assert!(answer(&address, &get("/events", "evil")).await.starts_with("HTTP/1.1 421"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_taken_port_is_named() {
    let view = View::told(manifest(), story());
    let pages = serve(view.clone(), "127.0.0.1:0").await.unwrap();
    let address = pages.url.strip_prefix("http://").unwrap().trim_end_matches('/').to_owned();
    let error = serve(view.clone(), &address).await.err().unwrap();
    assert!(error.contains(&address) && error.contains("free port"), "{error}");
    // Nobody is served any more once the pages are dropped, and the address is free.
    drop(pages);
    let again = async {
        while serve(view.clone(), &address).await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    timeout(Duration::from_secs(10), again).await.unwrap();
}
