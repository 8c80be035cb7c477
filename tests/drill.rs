//! Drills: the most telling attacks as real processes, beside what is to be expected of them.

use std::collections::BTreeSet;
use std::fs;

use e2e::processes::Run;
use e2e::programs;
use e2e::schema;
use muster_core::ledger::Ledger;
use muster_core::messages::record::Body;
use muster_replica::archive::Archive;

/// Seven nodes with two leaves each; every contribution is audited, one leaf of it recomputed.
const SETTINGS: &str = r#"
name = "drill"
[model]
width = 16
layers = 1
heads = 2
key_value_heads = 1
hidden = 24
sequence = 32
[training]
leaves = 14
leaf_windows = 1
[optimiser]
warmup = 3
[audit]
share = 1.0
leaves = 1
final_rounds = 2
"#;

/// Eleven nodes with two leaves each, on a model whose tokens choose among experts.
const EXPERTS: &str = r#"
name = "experts"
[model]
family = "mixture"
width = 16
layers = 1
heads = 2
key_value_heads = 1
hidden = 12
sequence = 32
[experts]
columns = 4
active = 2
shared_hidden = 8
[training]
leaves = 22
leaf_windows = 1
[optimiser]
warmup = 3
[audit]
share = 1.0
leaves = 1
final_rounds = 2
"#;

/// What the rehearsal keeps, and for how long.
const REHEARSAL: &str = "[retention]\ncontributions = 32\nstates = 32\n";

/// Rounds of a drill.
const ROUNDS: &str = "30";

/// A drill of seven nodes and one verifier, at default timers and retention, that must end well: what it printed, and its
/// report.
fn drill(attacks: &[&str]) -> (String, serde_json::Value) {
    drill_with("7", "1", "", attacks)
}

/// The same with these numbers of nodes and verifiers, and more settings.
fn drill_with(nodes: &str, verifiers: &str, settings: &str, attacks: &[&str]) -> (String, serde_json::Value) {
    let run = Run::waiting(programs!(), &format!("{SETTINGS}{settings}"), 1);
    reported(&run, ROUNDS, nodes, verifiers, attacks)
}

/// A drill that must end well: what it printed, and its report.
fn reported(
    run: &Run,
    rounds: &str,
    nodes: &str,
    verifiers: &str,
    attacks: &[&str],
) -> (String, serde_json::Value) {
    let (code, output) = tried(run, rounds, nodes, verifiers, attacks);
    assert_eq!(code, 0, "{output}");
    let report = fs::read_to_string(run.path("drill/report.json")).expect("a report");
    let report = serde_json::from_str(&report).expect("JSON");
    schema::check("rehearsal", &report);
    let page = fs::read_to_string(run.path("drill/report.html")).expect("a page");
    assert!(page.contains("<svg") && page.contains("Attackers"), "{page}");
    // One script, which lies beside it; the others are the charts' numbers.
    let scripts = ["<script", "<script src=\"data/charts.js\"", "<script type=\"application/json\""]
        .map(|of| page.matches(of).count());
    assert!(scripts[1] == 1 && scripts[0] == 1 + scripts[2], "{scripts:?} in {page}");
    assert!(run.path("drill/data/loss.csv").exists() && run.path("drill/data/charts.js").exists());
    (output, report)
}

/// A drill at a run's settings: its exit code, and what it printed.
fn tried(run: &Run, rounds: &str, nodes: &str, verifiers: &str, attacks: &[&str]) -> (i32, String) {
    let (config, text, out) = (run.at("run.toml"), run.at("text"), run.at("drill"));
    let asked = ["drill", "--config", &config, "--text", &text, "--out", &out, "--nodes", nodes];
    let times = ["--verifiers", verifiers, "--rounds", rounds, "--from", "4", "--attack"];
    run.muster(&[&asked[..], &times, attacks].concat())
}

/// Names of those that were banned, with what for.
fn banned(report: &serde_json::Value) -> BTreeSet<(String, String)> {
    let members = report["members"].as_array().expect("members");
    let name = |id: &serde_json::Value| {
        members.iter().find(|member| member["id"] == *id).expect("a member")["name"].clone()
    };
    let word = |value: &serde_json::Value| value.as_str().expect("text").to_owned();
    let bans = report["bans"].as_array().expect("bans").iter();
    bans.map(|ban| (word(&name(&ban["id"])), word(&ban["finding"]))).collect()
}

fn set<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> BTreeSet<(String, String)> {
    pairs.into_iter().map(|(name, finding)| (name.to_owned(), finding.to_owned())).collect()
}

/// One wrong row that was fitted to the points, one wrong leaf, and a wrong contribution whose author leaves at once.
#[test]
fn lies_in_the_work_are_found_and_the_run_replays() {
    let (output, report) = drill(&["fit", "one-leaf", "burst"]);
    let expected = [("fit", "leaf mismatch"), ("one-leaf", "leaf mismatch"), ("burst", "total mismatch")];
    assert_eq!(banned(&report), set(expected), "{output}");
    assert!(report["replay_stopped"].is_null() && output.contains("replayed to the last bit"), "{output}");
    // Audits of one leaf of two find one wrong leaf every second time.
    let members = report["members"].as_array().expect("members");
    let fit = members.iter().find(|member| member["name"] == "fit").expect("an attacker");
    assert_eq!(fit["attack"]["audits_expected"], 2.0, "{fit}");
    assert!(fit["attack"]["audits"].as_u64() >= Some(1), "{fit}");
    let counted =
        report["cheating"].as_array().expect("cheats").iter().any(|cheat| {
            members.iter().any(|member| member["id"] == cheat["id"] && member["name"] == "burst")
        });
    assert!(counted, "what a burst leaves behind is archived: {report}");
}

/// Two commitments, a table that is opened otherwise than it was sealed, and a member that delivers nothing.
#[test]
fn breaches_of_the_protocol_are_found_or_harmless() {
    let (output, report) = drill(&["equivocate", "swap", "withhold"]);
    assert_eq!(
        banned(&report),
        set([("equivocate", "equivocation"), ("swap", "total mismatch")]),
        "{output}"
    );
    assert!(report["replay_stopped"].is_null() && output.contains("replayed to the last bit"), "{output}");
    assert!(
        output.contains("honest members banned: 0") && output.contains("1 did nothing that convicts"),
        "{output}"
    );
}

fn member<'a>(report: &'a serde_json::Value, name: &str) -> &'a serde_json::Value {
    let mut members = report["members"].as_array().expect("members").iter();
    members.find(|member| member["name"] == name).expect("a member")
}

/// In how many rounds an attacker counted while it cheated.
fn counted(report: &serde_json::Value, name: &str) -> usize {
    let id = &member(report, name)["id"];
    report["cheating"].as_array().expect("cheats").iter().filter(|cheat| cheat["id"] == *id).count()
}

/// Who answers nothing or hides integers is found as soon as whoever does neither, at default timers and retention (AUDIT-26),
/// and the archive replays.
#[test]
fn silence_hides_nothing() {
    let silent = ["refuse", "swap", "mute", "conceal", "hide", "flip"];
    let (output, report) = drill_with("13", "1", "", &silent);
    let total = ["refuse", "swap", "mute", "conceal", "hide"].map(|name| (name, "total mismatch"));
    assert_eq!(banned(&report), set(total.into_iter().chain([("flip", "sum mismatch")])), "{output}");
    assert!(report["replay_stopped"].is_null() && output.contains("replayed to the last bit"), "{output}");
    assert!(output.contains("honest members banned: 0"), "{output}");
    // A window of rounds at most, and those for which it is convicted; who answers, or delivers, does not gain as much.
    for name in silent {
        let most = if ["refuse", "swap", "mute"].contains(&name) { 18 } else { 14 };
        assert!(counted(&report, name) <= most, "{name}: {} rounds: {output}", counted(&report, name));
    }
    assert_eq!(member(&report, "verifier")["idled"], 0, "{output}");
}

/// Who only takes its time, or never ends an answer, harms nobody and hides nobody, with what the rehearsal keeps.
#[test]
fn who_dawdles_hides_nobody() {
    let (output, report) = drill_with("7", "1", REHEARSAL, &["late", "jam", "flip"]);
    assert_eq!(banned(&report), set([("flip", "sum mismatch")]), "{output}");
    assert!(report["replay_stopped"].is_null() && output.contains("replayed to the last bit"), "{output}");
    assert!(output.contains("honest members banned: 0"), "{output}");
}

/// What counts between an act and its ban does not depend on how late its author answers, at default timers and retention, and
/// nothing is forgotten that replay needs.
#[test]
fn who_answers_audits_late_counts_no_longer_for_it_and_the_archive_replays() {
    let (output, report) = drill_with("8", "2", "", &["late-flip", "late-fit", "flip"]);
    let expected = [("late-flip", "sum mismatch"), ("late-fit", "leaf mismatch"), ("flip", "sum mismatch")];
    assert_eq!(banned(&report), set(expected), "{output}");
    assert!(report["replay_stopped"].is_null() && output.contains("replayed to the last bit"), "{output}");
    assert!(output.contains("honest members banned: 0"), "{output}");
    // Two contributions for each of two steps, beside the time of verifiers and steward. Without AUDIT-27 it would be a window.
    assert!(counted(&report, "late-flip") <= 11, "{output}");
}

/// Of three verifiers one accuses and one lets pass what a cheat does: the first is banned, the others' word stands.
#[test]
fn a_verifier_that_lies_is_banned_and_nobody_whom_it_accuses() {
    let (output, report) = drill_with("7", "3", "", &["flip", "accuse", "acquit"]);
    let banned = banned(&report);
    assert!(banned.contains(&("accuse".into(), "false accusation".into())), "{output}");
    let deserved = ["accuse", "acquit", "flip"];
    assert!(banned.iter().all(|(name, _)| deserved.contains(&name.as_str())), "{output}");
    for words in [
        "inspects as it should, finds every leaf wrong",
        "convicted by its first verdict on an honest member",
    ] {
        assert!(output.contains(words), "{words}: {output}");
    }
    assert!(output.contains("honest members banned: 0"), "{output}");
}

/// Of four verifiers one sleeps, one hunts a member and one shows its coins too early: each is sealed as idle, nobody is
/// banned for it, and the cheat is found: by an audit, or by who computes all of what another one left undone.
#[test]
fn a_verifier_that_leaves_its_duty_undone_is_idle_and_the_cheat_is_found() {
    // Few rounds: each waits for who sleeps.
    let run = Run::waiting(programs!(), SETTINGS, 1);
    let (output, report) = reported(&run, "16", "7", "4", &["flip", "sleep", "hunt", "early-coin"]);
    let found = ["sum mismatch", "total mismatch"].map(|finding| set([("flip", finding)]));
    assert!(found.contains(&banned(&report)), "{output}");
    let members = report["members"].as_array().expect("members");
    for name in ["sleep", "hunt", "early-coin"] {
        let member = members.iter().find(|member| member["name"] == name).expect("a verifier");
        assert!(member["idled"].as_u64() > Some(0), "{member}: {output}");
        assert!(output.contains(&format!("\n{name}")), "{output}");
    }
    let honest = members.iter().find(|member| member["name"] == "verifier").expect("a verifier");
    assert_eq!(honest["idled"], 0, "{output}");
    assert!(output.contains("3 more left their duty undone"), "{output}");
}

/// Five of eleven members attack the experts of a mixture at once.
#[test]
fn attacks_on_experts_are_found_and_the_run_replays() {
    let attacks = ["starve", "collapse", "bomb", "top-one", "tie"];
    let (output, report) = reported(&Run::waiting(programs!(), EXPERTS, 1), ROUNDS, "11", "1", &attacks);
    assert_eq!(banned(&report), set(attacks.map(|name| (name, "leaf mismatch"))), "{output}");
    assert!(report["replay_stopped"].is_null() && output.contains("replayed to the last bit"), "{output}");
    assert!(output.contains("honest members banned: 0"), "{output}");
}

/// Where a model has no experts, or too few of them, the drill says so before anybody joins.
#[test]
fn attacks_on_experts_are_refused_where_there_are_none() {
    let refused = |settings: &str, attack: &str| {
        let (code, output) = tried(&Run::waiting(programs!(), settings, 1), ROUNDS, "4", "1", &[attack]);
        assert_eq!(code, 2, "{output}");
        output
    };
    let output = refused(SETTINGS, "starve");
    assert!(output.contains("starve: the run's model has no experts"), "{output}");
    let output = refused(&EXPERTS.replace("active = 2", "active = 1"), "top-one");
    assert!(output.contains("the run's model has 1 active expert, and this attack needs 2"), "{output}");
}

/// Settings of [`EXPERTS`] with several rows, which come to be before anybody cheats.
fn with_rows(rows: u16) -> String {
    EXPERTS.replace("[experts]", &format!("[experts]\nrows = {rows}\nbranch = 0.1"))
}

/// Whether each update of a row that was applied is made of contributions that had passed by then: the rows that were not
/// held apart, how many were.
fn applied_what_passed(run: &Run) -> usize {
    let archive = Archive::open(&run.path("drill/run")).expect("an archive");
    let mut ledger = Ledger::new(archive.manifest.clone());
    let (mut applied, mut passed) = (0, BTreeSet::new());
    for signed in &archive.records {
        let record = ledger.apply(signed).expect("an honest ledger");
        let Body::Outcome(outcome) = &record.body else { continue };
        for step in &*outcome.steps {
            let view = ledger.round(step.round).expect("a round of the last ones");
            if view.is_held(step.row) {
                assert!(
                    view.authors_in(step.row).all(|author| passed.contains(&(step.round, author))),
                    "{step:?}"
                );
                applied += 1;
            }
        }
        passed.extend(outcome.credits.iter().map(|credit| (credit.round, credit.member)));
    }
    applied
}

/// Six nodes on three rows, so that nobody has a majority in any.
#[test]
fn in_rows_of_two_no_poison_is_applied_and_its_authors_are_banned() {
    let run = Run::waiting(programs!(), &with_rows(3), 3);
    let (output, report) = reported(&run, ROUNDS, "6", "2", &["pair", "capture"]);
    assert_eq!(banned(&report), set([("pair", "sum mismatch"), ("capture", "leaf mismatch")]), "{output}");
    assert!(
        output.contains("replayed to the last bit") && output.contains("honest members banned: 0"),
        "{output}"
    );
    assert!(applied_what_passed(&run) > 0, "honest updates of held rows are applied: {output}");
}

/// Eight nodes on two rows: leaves of another row, of an old one, of another row's windows.
#[test]
fn leaves_of_another_row_are_found_and_the_run_replays() {
    let attacks = ["other-row", "stale-row", "pick"];
    let (output, report) = reported(&Run::waiting(programs!(), &with_rows(2), 2), ROUNDS, "8", "2", &attacks);
    assert_eq!(banned(&report), set(attacks.map(|name| (name, "leaf mismatch"))), "{output}");
    assert!(
        output.contains("replayed to the last bit") && output.contains("honest members banned: 0"),
        "{output}"
    );
}

#[test]
fn who_spoils_parts_of_rows_or_drains_them_stops_nobody_else() {
    let (output, report) = reported(
        &Run::waiting(programs!(), &with_rows(3).replace("[audit]", "[audit]\nblocks = 1.0"), 3),
        ROUNDS,
        "6",
        "2",
        &["row-nudge", "drain"],
    );
    assert_eq!(banned(&report), set([("row-nudge", "aggregation mismatch")]), "{output}");
    assert!(
        output.contains("replayed to the last bit") && output.contains("honest members banned: 0"),
        "{output}"
    );
}

/// The same drill at two shares of audits: one report for each, and one that compares them.
#[test]
fn a_sweep_compares_values_of_a_setting() {
    let run = Run::waiting(programs!(), SETTINGS, 1);
    let (config, text, out) = (run.at("run.toml"), run.at("text"), run.at("sweep"));
    let asked =
        ["drill", "--config", &config, "--text", &text, "--nodes", "7", "--rounds", "12", "--from", "2"];
    let sweep = ["--attack", "flip", "--sweep", "audit.share=0.5,1.0", "--out", &out];
    let (code, output) = run.muster(&[&asked[..], &sweep].concat());
    assert_eq!(code, 0, "{output}");
    let read = |name: &str| fs::read_to_string(run.path("sweep").join(name)).expect("a file");
    let report: serde_json::Value = serde_json::from_str(&read("report.json")).expect("JSON");
    schema::check("sweep", &report);
    let points = report["points"].as_array().expect("points");
    assert_eq!((points.len(), &points[1]["banned"], &points[1]["recomputed"]), (2, &1.into(), &0.5.into()));
    for point in points {
        let folder = point["folder"].as_str().expect("a folder");
        let drill: serde_json::Value =
            serde_json::from_str(&read(&format!("{folder}/report.json"))).expect("JSON");
        schema::check("rehearsal", &drill);
    }
    let page = read("report.html");
    assert!(page.contains("share-0.5/report.html") && page.matches("<figure").count() == 4, "{page}");
    assert!(read("data/price.csv").starts_with("audit.share,recomputed\n0.5,25\n1,50\n"));
    // What is wrong is said before anything is played.
    let other = run.at("other");
    for (values, words) in [("audit.shares=0.5,1.0", "shares"), ("audit.share=0.5,7", "audit.share = 7")] {
        let (code, output) = run.muster(&[&asked[..], &["--sweep", values, "--out", &other]].concat());
        assert!(code == 2 && output.contains(words), "{code} {output}");
    }
    assert!(!run.path("other").exists());
}
