//! Who gets in without an invitation, and how many at a time.

use e2e::processes::Run;
use e2e::programs;
use e2e::settings::Settings;
use muster_core::codec::List;
use muster_core::ids::MemberId;
use muster_core::manifest::{Admission, Listed, Mode};
use muster_core::messages::enrol::Role;

use crate::chain::{Chain, VERIFIERS, id, on_probation, refused};

#[test]
fn a_flood_of_keys_gets_a_turn_at_a_time_and_half_the_places() {
    let admission = Admission { mode: Mode::Open, per_round: 3, ..on_probation() };
    let mut chain = Chain::new(Admission { most_members: 16, ..admission });
    chain.begin();
    let mut came: Vec<u8> = Vec::new();
    for who in 100..140 {
        if chain.admit(who, None, who).is_ok() {
            came.push(who);
        } else if came.len().is_multiple_of(3) && came.len() < 8 {
            refused(chain.admit(who, None, who), "enough newcomers");
            chain.round(Vec::new());
        }
    }
    assert_eq!(came.len(), 8, "half of sixteen");
    chain.round(Vec::new());
    refused(chain.admit(150, None, 150), "too many newcomers");
    // Those that the organiser knows still come, and have their seats.
    (12..16).for_each(|who| chain.invite(who, Role::Node, true));
    chain.round(Vec::new());
    let founders: Vec<MemberId> = [10, 11, 12, 13, 14, 15].map(id).to_vec();
    let mut served = std::collections::BTreeSet::new();
    for _ in 0..4 {
        let seats = chain.ledger.current().expect("a round").seats().to_vec();
        let members: Vec<MemberId> = seats.iter().map(|seat| seat.member).collect();
        // LEDGER-14: members with weight in order of admission, then newcomers, who take turns.
        assert_eq!((members[..6].to_vec(), members.len()), (founders.clone(), 8), "a quarter of the seats");
        // STAND-8: what newcomers compute comes on top; nothing of the round is lost by them.
        assert_eq!(seats[..6].iter().map(|seat| seat.quota).sum::<u32>(), 32);
        served.extend(members[6..].to_vec());
        chain.round(Vec::new());
    }
    assert_eq!(served.len(), 8, "each has its turn");
}

/// With no probation every key has weight at once: half of the places would not hold them up.
#[test]
fn stand_8_a_member_that_fills_the_run_leaves_the_organiser_a_quarter() {
    let admission = Admission { member_invites: 60, depth: 1, per_round: 60, ..Admission::closed(2, 0, 16) };
    let mut chain = Chain::new(admission);
    chain.begin();
    let came = (100..140).take_while(|who| chain.bring(*who, 10).is_ok()).count();
    assert_eq!(came, 12 - 2 - VERIFIERS.len(), "three quarters of sixteen");
    chain.round(Vec::new());
    refused(chain.bring(150, 10), "for those whom the organiser invites");
    chain.invite(20, Role::Node, false);
}

#[test]
fn without_an_invitation_only_those_come_whom_the_manifest_lets() {
    let mut closed = Chain::new(Admission::closed(2, 0, 64));
    refused(closed.admit(30, None, 30), "asks for an invitation");
    let list = |people: &[u8]| List::new(people.iter().map(|who| id(*who)).collect()).expect("few");
    let listed = Listed { founders: list(&[10]), nodes: list(&[30]), verifiers: list(&[VERIFIERS[0]]) };
    let mut chain = Chain::new(Admission { mode: Mode::Listed(listed), ..on_probation() });
    for who in [10, 30, VERIFIERS[0]] {
        chain.admit(who, None, who).expect("it is listed");
    }
    refused(chain.admit(31, None, 31), "does not list it");
    assert!(chain.member(10).founder && !chain.member(30).founder);
    assert_eq!(chain.member(VERIFIERS[0]).role, Role::Verifier);
    let mut open = Chain::new(Admission { mode: Mode::Open, per_round: 9, ..on_probation() });
    open.admit(30, None, 30).expect("everyone may come");
    assert!(!open.ledger.weighs(open.member(30)));
    // LEDGER-5: coins are a verifier's alone, and nobody is a member twice.
    // STAND-7: nobody makes itself a verifier, and with that its friends weighty.
    refused(open.admit(VERIFIERS[0], None, VERIFIERS[0]), "a node registers no coins");
    refused(open.admit(30, None, 30), "enrols once");
}

#[test]
fn listed_members_need_no_invitation_and_nobody_else_gets_in_without() {
    let settings = Settings { rounds: 12, nodes: 2, verifiers: 1, audit: (1.0, 2), ..Settings::default() };
    let run = Run::packed(programs!(), &settings.to_string(), None);
    let id = |name: &str| run.good(&["id", "--data-dir", &run.at(name)]).trim().to_owned();
    let (founder, node, verifier) = (id("first"), id("second"), id("watch"));
    let admission = format!(
        "[admission]\nmode = \"listed\"\nfounders = [\"{founder}\"]\nnodes = [\"{node}\"]\nverifiers = [\"{verifier}\"]"
    );
    let settings = settings.to_string().replace("[admission]", &admission);
    std::fs::write(run.path("run.toml"), settings).expect("a file");
    std::fs::remove_dir_all(run.path("run")).expect("a run that nobody is in");
    let (config, corpus, out) = (run.at("run.toml"), run.at("corpus"), run.at("run"));
    run.good(&["run", "new", "--config", &config, "--data", &corpus, "--out", &out]);
    let mut steward = run.host();
    let line = run.good(&["invite", &run.at("run")]);
    let mut stranger = run.join("stranger", line.trim(), &[]);
    assert_eq!(stranger.wait(), 1, "{}", stranger.log());
    assert!(
        stranger.log().contains("the manifest does not list it, and it has no invitation"),
        "{}",
        stranger.log()
    );
    let mut watch = run.watch("watch", line.trim());
    let mut nodes = ["first", "second"].map(|name| run.join(name, line.trim(), &[]));
    for process in nodes.iter_mut().chain([&mut watch, &mut steward]) {
        assert_eq!(process.wait(), 0, "{}", process.log());
    }
    let shown = run.good(&["members", &run.at("run")]);
    assert_eq!(shown.matches("node      active, counts").count(), 2, "{shown}");
    assert_eq!(shown.matches("verifier  active").count(), 1, "{shown}");
    run.check_end(&["first", "second"]);
}
