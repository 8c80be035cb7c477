//! The steward's court over real processes, at default timers: whoever hides or conceals is banned in a few rounds, whoever
//! cheats beside it is banned in its own time, and the archive replays.

use std::collections::BTreeMap;

use e2e::processes::{Process, Run};
use e2e::programs;
use e2e::settings::Settings;

/// Every contribution is audited.
fn settings(rounds: u32, nodes: u32) -> Settings {
    Settings { rounds, nodes, verifiers: 1, audit: (1.0, 1), ..Settings::default() }
}

/// Rounds in which each member of these names was banned: of the offence, and from which on.
fn bans(run: &Run, names: &[&str]) -> BTreeMap<String, (u64, u64, String)> {
    let id = |name: &str| run.good(&["id", "--data-dir", &run.at(name)]).trim().to_owned();
    let ids: BTreeMap<String, &str> = names.iter().map(|name| (id(name), *name)).collect();
    let bans = run.events("ban").into_iter().map(|ban| {
        let member = ban["member"].as_str().expect("a member");
        let name = ids.get(member).unwrap_or_else(|| panic!("{member} was banned: {ban}"));
        let round = |key: &str| ban[key].as_u64().expect("a round");
        let finding = ban["finding"].as_str().expect("a finding").to_owned();
        ((*name).to_owned(), (round("round"), round("effective"), finding))
    });
    bans.collect()
}

fn replays(run: &Run) {
    let (code, output) = run.replay();
    assert_eq!(code, 0, "{output}");
    assert!(output.contains(&run.root()[..16]), "{output}");
}

fn end(mut honest: Vec<Process>, mut cheats: Vec<Process>, steward: &mut Process) {
    for process in &mut honest {
        assert_eq!(process.wait(), 0, "{}", process.log());
    }
    cheats.iter_mut().for_each(|cheat| assert_eq!(cheat.wait(), 1, "{}", cheat.log()));
    assert_eq!(steward.wait(), 0, "{}", steward.log());
}

/// Rounds between the first bad one and the first without its author, at most: the audit, the verdict, the hearing.
const SOON: u64 = 14;

#[test]
fn who_hides_its_sum_from_the_steward_is_banned_and_flip_beside_it_in_its_own_time() {
    let run = Run::new(programs!(), &settings(60, 5));
    let mut steward = run.host();
    let verifier = run.watch("verifier", &run.invite("verifier", 1));
    let nodes = run.invite("node", 5);
    let mut honest: Vec<_> = ["a", "b", "c"].iter().map(|name| run.join(name, &nodes, &[])).collect();
    honest.push(verifier);
    let cheats = vec![run.attack("hide", "hide", 5, &nodes), run.attack("flip", "flip", 12, &nodes)];
    end(honest, cheats, &mut steward);
    let bans = bans(&run, &["hide", "flip"]);
    assert_eq!(bans.len(), 2, "{bans:?}");
    let (hide, flip) = (&bans["hide"], &bans["flip"]);
    assert_eq!((hide.2.as_str(), flip.2.as_str()), ("total mismatch", "sum mismatch"), "{bans:?}");
    assert!(hide.1 <= 5 + SOON && flip.1 <= 12 + SOON, "{bans:?}");
    replays(&run);
}

#[test]
fn who_conceals_a_part_is_banned_and_the_archive_replays() {
    let run = Run::new(programs!(), &settings(40, 4));
    let mut steward = run.host();
    let verifier = run.watch("verifier", &run.invite("verifier", 1));
    let nodes = run.invite("node", 4);
    let mut honest: Vec<_> = ["a", "b", "c"].iter().map(|name| run.join(name, &nodes, &[])).collect();
    honest.push(verifier);
    let cheats = vec![run.attack("conceal", "conceal", 4, &nodes)];
    end(honest, cheats, &mut steward);
    let bans = bans(&run, &["conceal"]);
    assert_eq!(bans.len(), 1, "{bans:?}");
    let (_, effective, finding) = &bans["conceal"];
    assert_eq!(finding, "total mismatch");
    assert!(*effective <= 4 + SOON, "{bans:?}");
    replays(&run);
}

/// AUDIT-24: the ban is the last thing that happens, and what its author contributed in rounds before, which nobody doubted by
/// then, is kept before the run is closed. A steward that was interrupted over the archive writes it when it is back.
#[test]
fn the_end_of_a_run_waits_for_what_replay_needs() {
    let settings = format!("{}[timers]\naudit = 1.0\nfinal_audit = 1.0\n", settings(12, 4));
    let run = Run::packed(programs!(), &settings, None);
    let mut steward = run.host();
    let verifier = run.watch("verifier", &run.invite("verifier", 1));
    let nodes = run.invite("node", 4);
    let mut honest: Vec<_> = ["a", "b", "c"].iter().map(|name| run.join(name, &nodes, &[])).collect();
    honest.push(verifier);
    let cheats = vec![run.attack("refuse", "refuse", 10, &nodes)];
    end(honest, cheats, &mut steward);
    let bans = bans(&run, &["refuse"]);
    assert_eq!(bans["refuse"].1, 12, "after the last round: {bans:?}");
    replays(&run);
    std::fs::remove_file(run.path("run/ledger.bin")).expect("an archive");
    assert_eq!(run.host().wait(), 0);
    replays(&run);
}
