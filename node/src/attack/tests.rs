use std::path::Path;
use std::time::{Duration, Instant};

use muster_compute::Exact;
use muster_core::assign::round_seed;
use muster_core::ids::{Block, Digest, MemberId, Slot};
use muster_core::manifest::Manifest;
use muster_core::messages::record::Seat;
use muster_core::sketch::{fingerprint, points};
use muster_replica::Replica;
use muster_store::dataset::{self, Dataset, Text};

use super::*;
use crate::config::{Makers, Settings};
use crate::join::{Honest, Summed, Work};

const TINY: &str = "
    [model]
    width = 8
    layers = 1
    heads = 2
    key_value_heads = 2
    hidden = 12
    sequence = 16
";

fn manifest(place: &Path) -> (Arc<Manifest>, Arc<Dataset>) {
    let text = |name: &str| {
        let bytes = "to muster is to gather, and to inspect. ".repeat(40).into_bytes();
        vec![Ok(Text { name: name.into(), bytes })]
    };
    let data = dataset::pack(text("train"), text("held out"), place, &mut |_| ()).unwrap();
    let nobody = MemberId([0; 32]);
    let makers = Makers { organiser: nobody, steward: nobody, nonce: [0; 16] };
    let manifest =
        Settings::parse(Path::new("run.toml"), TINY).unwrap().manifest(&makers, data.clone()).unwrap();
    (Arc::new(manifest), Arc::new(Dataset::open(place, &data).unwrap()))
}

fn work(round: u32) -> Work {
    let place = tempfile::tempdir().unwrap();
    let (manifest, dataset) = manifest(&place.path().join("corpus"));
    let (root, state) = Replica::genesis(manifest.clone(), dataset.clone(), 1, None).unwrap().snapshot();
    let round = Round(round);
    Work {
        seed: round_seed(manifest.run(), round, &root),
        manifest,
        dataset,
        round,
        root,
        state,
        slot: Slot(1),
        seats: 3,
        quota: 2,
        seating: vec![Seat { member: MemberId([0; 32]), quota: 2 }; 3],
        parts: vec![vec![Block(0)]],
        deadline: Instant::now() + Duration::from_secs(600),
    }
}

fn contribute(conduct: &dyn Conduct, work: &Work) -> Summed {
    conduct.contribute(work, &mut Exact::new(1, None).unwrap())
}

fn conduct(name: &str, from: u32) -> Arc<dyn Conduct> {
    name.parse::<Attack>().unwrap().conduct(Plan::from(Round(from)))
}

/// Whether the table adds up to the sum, as an audit checks it.
fn adds_up(summed: &Summed) -> bool {
    let points = points(&Digest([7; 32]));
    let sum = Summed::of(summed.leaves.clone());
    fingerprint(points, &sum.q) == fingerprint(points, &summed.q) && sum.loss == summed.loss
}

#[test]
fn all_are_honest_before_their_round() {
    let work = work(4);
    let honest = contribute(&Honest, &work);
    for attack in ATTACKS {
        let summed = contribute(&*attack.conduct(Plan::from(Round(6))), &work);
        assert!(
            summed.q == honest.q && summed.loss == honest.loss && summed.leaves == honest.leaves,
            "{}",
            attack.name
        );
        assert!(adds_up(&summed));
    }
}

#[test]
fn flip_shows_true_leaves_that_do_not_add_up() {
    let work = work(5);
    let honest = contribute(&Honest, &work);
    let summed = contribute(&*conduct("flip", 5), &work);
    assert_eq!(summed.leaves, honest.leaves);
    assert!(summed.q.iter().zip(&honest.q).all(|(cheat, value)| *cheat == -10 * value));
    assert!(!adds_up(&summed));
}

#[test]
fn lazy_adds_up_but_has_other_leaves() {
    let labour = conduct("lazy", 5);
    let before = contribute(&*labour, &work(4));
    let mut late = work(5);
    late.quota = 3;
    let summed = contribute(&*labour, &late);
    assert!(adds_up(&summed));
    assert_eq!(summed.leaves.len(), 3);
    assert_eq!(summed.leaves[2], before.leaves[0]);
    let honest = contribute(&Honest, &late);
    assert!(summed.leaves.iter().zip(&honest.leaves).all(|(lazy, true_one)| lazy.0 != true_one.0));
}
