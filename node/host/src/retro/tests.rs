use std::path::Path;
use std::sync::Mutex;

use muster_compute::{Exact, Machine};
use muster_core::contribution::{Commitment, PackedContribution};
use muster_core::ids::{Digest, Round};
use muster_core::manifest::{Manifest, Profile};
use muster_core::sign::Identity;
use muster_keeper::intake::shelf::Shelf;
use muster_net::endpoint::Endpoint;
use muster_net::seats::ConnectionLimit;
use muster_net::shares::Shares;
use muster_organise::config::{Makers, Settings};
use muster_replica::{CommittedContribution, Contact, HeldBlocks, Offers, Peers, Replica};
use muster_store::dataset::{self, Dataset, SourceText};
use muster_store::home::Home;
use muster_store::journal::Journal;
use tokio::sync::Semaphore;

use super::*;
use crate::court::{HOARD, SHOWING};
use crate::origins::Origins;
use crate::second::Second;

/// A tiny model.
pub(crate) const TINY: &str = "
    [model]
    width = 8
    layers = 1
    heads = 2
    key_value_heads = 2
    hidden = 12
    sequence = 16
";
const TOLERANT: &str = "
    [arithmetic]
    profile = \"f32\"
    tolerance = [1e-3]
    loss_tolerance = 1e-3
";

/// A court of these settings at the beginning of a run, and who seals its records.
pub(crate) fn court(folder: &Path, settings: &str) -> (Court, Arc<Identity>) {
    let text = |name: &str| {
        let bytes = "to muster is to gather, and to inspect. ".repeat(40).into_bytes();
        vec![Ok(SourceText { name: name.into(), bytes })]
    };
    let corpus = folder.join("corpus");
    let data = dataset::pack(text("train"), text("held out"), &corpus, &mut |_| ()).unwrap();
    let identity = Arc::new(Identity::from_secret(&[2; 32]));
    let makers = Makers { organiser: MemberId([0; 32]), steward: identity.id(), nonce: [0; 16] };
    let settings = Settings::parse(Path::new("run.toml"), settings).unwrap();
    let manifest = Arc::new(settings.manifest(&makers, data.clone()).unwrap());
    let dataset = Arc::new(Dataset::open(&corpus, &data).unwrap());
    let replica = Replica::genesis(manifest.clone(), dataset.clone(), 1, None).unwrap();
    let layout = Arc::new(Layout::of_run(&manifest));
    let home = Home::open(&folder.join("home")).unwrap();
    let replica = Arc::new(Mutex::new(replica));
    let (failed, _) = tokio::sync::mpsc::channel(1);
    let limit = ConnectionLimit { total: 1, per_source: 1 };
    let court = Court {
        shelf: Arc::new(Shelf::new(layout.clone(), Arc::new(home.clone()), failed)),
        layout,
        offers: Arc::new(Offers::new(home.row_files().unwrap(), replica.clone())),
        origins: Origins::recall(&home, &Ledger::new(manifest.clone()), Shares::new(limit)),
        home,
        journal: Arc::new(Journal::in_memory().unwrap()),
        keep_aggregates: false,
        peers: Peers::new(Endpoint::new(manifest.run(), identity.clone())),
        dataset,
        replica,
        arithmetic: Arc::new(Mutex::new(Box::new(Exact::new(1, None).unwrap()))),
        second: Second::new(Machine::new(1, None)),
        hoard: Arc::new(Semaphore::new(HOARD)),
        showing: Semaphore::new(SHOWING),
        stopped: tokio::sync::watch::channel(false).1,
        manifest,
    };
    (court, identity)
}

fn commit(manifest: &Manifest, state: Digest, root: Digest, loss: i64) -> Commit {
    let (round, slot, profile) = (Round(0), Slot(1), Profile::F32);
    assert_eq!(manifest.profile, profile);
    let (head, route) = (Digest::default(), None);
    Commit { round, head, state, slot, seats: 2, route, leaves: 2, profile, loss, root }
}

#[tokio::test]
async fn rollback_2_a_withheld_part_hides_no_harm() {
    let folder = tempfile::tempdir().unwrap();
    let court = Arc::new(court(folder.path(), &format!("{TINY}{TOLERANT}")).0);
    let (root, state) = court.replica.lock().unwrap().snapshot();
    let kept = KeptState::in_memory(root, state.clone());
    let honest = commit(&court.manifest, root, Digest::default(), 0);
    let (own, _) = court.clone().recomputed(&honest, &kept, None).await.unwrap();
    // Another machine's sum, one off in one place, and its loss.
    let mut theirs = own.clone();
    theirs[0] += 1;
    let nothing = Brought::default();
    let mut text = Exhibited::new(Vec::new(), court.dataset.clone(), &court.manifest, nothing);
    let mut exact = Exact::new(1, None).unwrap();
    let sum = recompute_sum(&court.manifest, &honest, &state, &mut text, &mut exact).unwrap();
    let theirs_root = Commitment::new(&court.layout, &theirs).root();
    let commit = commit(&court.manifest, root, theirs_root, sum.loss);
    // A convict shows that it was right, or it was not.
    let found = |committed| court.clone().recomputed(&commit, &kept, committed);
    let packed = |q: &[i32]| Some(Arc::new(PackedContribution::new(&court.layout, q)));
    assert!(found(packed(&theirs)).await.unwrap().1);
    assert!(!found(None).await.unwrap().1);
    assert!(!found(packed(&theirs.iter().map(|q| 10 * q).collect::<Vec<_>>())).await.unwrap().1);
    // Nobody has what this one contributed.
    let name = CommittedContribution { round: Round(0), member: MemberId([9; 32]), root: theirs_root };
    let parts = vec![HeldBlocks { part: Part(0), blocks: vec![Block(0)], holders: Vec::new() }];
    let wanted = WantedContribution { name, parts };
    assert!(court.fetch(&wanted).await.is_err());
    let counted = [CountedSlot { slot: Slot(1), commit: commit.clone(), wanted: Some(wanted) }];
    let waits = Arc::new(Waits::new(&court.layout));
    let inputs = court.clone().inputs(&counted, &kept, &waits).await;
    assert_eq!(inputs, Some(BTreeMap::from([(Slot(1), own.clone())])));
    assert!(waits.silent.lock().unwrap().contains(&MemberId([9; 32])), "it is not asked again");
    // Nor is a convict: what it should have contributed stands for it.
    let counted = [CountedSlot { slot: Slot(1), commit, wanted: None }];
    let inputs = court.clone().inputs(&counted, &kept, &waits).await;
    assert_eq!(inputs, Some(BTreeMap::from([(Slot(1), own)])));
}

#[test]
fn rollback_1_no_wait_for_others_begins_after_four_times_as_long_as_one_may_take() {
    let waits = Waits::of(Duration::from_secs(60));
    assert!(waits.left().is_some_and(|left| left <= Duration::from_secs(60)));
    assert!(waits.until <= Instant::now() + Duration::from_secs(240));
    let over = Waits { until: Instant::now(), ..waits };
    assert_eq!(over.left(), None);
}

/// Holders that accept and say nothing: friends of a convict would hold back rounds for as long as they like.
#[tokio::test]
async fn rollback_5_whoever_shows_nothing_is_waited_for_once_and_all_of_them_for_a_bounded_time() {
    let folder = tempfile::tempdir().unwrap();
    let court = court(folder.path(), &format!("{TINY}{TOLERANT}")).0;
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    silent.set_nonblocking(true).unwrap();
    let asked = || std::iter::from_fn(|| silent.accept().ok()).count();
    let wanted = |round, author| {
        let name = CommittedContribution {
            round: Round(round),
            member: MemberId([author; 32]),
            root: Digest::default(),
        };
        let addresses = vec![silent.local_addr().unwrap().to_string()];
        let holders = vec![Contact { member: name.member, addresses }];
        WantedContribution {
            name,
            parts: vec![HeldBlocks { part: Part(0), blocks: vec![Block(0)], holders }],
        }
    };
    let waits = Waits::of(Duration::from_millis(300));
    let begun = Instant::now();
    assert_eq!(court.in_time(&wanted(0, 9), &waits).await, None);
    assert!(begun.elapsed() < Duration::from_secs(3), "less than the network waits for a handshake");
    assert_eq!(asked(), 1);
    assert_eq!(court.in_time(&wanted(1, 9), &waits).await, None);
    assert_eq!(asked(), 0, "nor is it waited for in another round");
    assert_eq!(court.in_time(&wanted(0, 8), &waits).await, None);
    assert_eq!(asked(), 1, "another member");
    let over = Waits { until: Instant::now(), ..waits };
    assert_eq!(court.in_time(&wanted(0, 7), &over).await, None);
    assert_eq!(asked(), 0, "all of them have taken as long as they may");
}

#[test]
fn rollback_2_movement_is_relative() {
    let of = |applied: [f32; 2], right: [f32; 2]| movement(applied.into_iter().zip(right));
    assert_eq!(of([3.0, 4.0], [3.0, 4.0]), 0.0);
    assert_eq!(of([3.0, 4.0], [0.0, 0.0]), 1.0);
    assert_eq!(of([3.0, 4.0], [-3.0, -4.0]), 2.0);
    assert_eq!(of([0.0, 0.0], [1.0, 0.0]), 0.0);
}
