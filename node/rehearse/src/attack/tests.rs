mod mixtures;

use std::path::Path;
use std::time::{Duration, Instant};

use muster_compute::Exact;
use muster_core::assign::round_seed;
use muster_core::codec::List;
use muster_core::ids::{Block, Digest, MemberId, Part, Row, ShardId, Slot};
use muster_core::layout::Layout;
use muster_core::manifest::fixture::{local, mixture};
use muster_core::manifest::{Data, Manifest, Model, Profile};
use muster_core::messages::audit::Rows;
use muster_core::messages::record::Seat;
use muster_core::messages::round::{Bitmap, Commit, Route};
use muster_core::reduction::Reduced;
use muster_core::sketch::Probe;
use muster_member::{AggregatorView, Assignment, AuditedContribution, HonestNode, Spares, Summed};
use muster_organise::config::{Makers, Settings};
use muster_replica::Replica;
use muster_store::dataset::{self, Dataset, RouterSize, SourceText};
use muster_store::error::StoreError;

use super::*;

const LEAVES: u32 = 3;
const FROM: u32 = 9;
const FREEZE: Digest = Digest([7; 32]);
const TINY: &str = "
    [model]
    width = 8
    layers = 1
    heads = 2
    key_value_heads = 2
    hidden = 12
    sequence = 16
";

/// What a round is played on: a decoder, or a mixture of the same sizes, with one row or with two, or local updates of the decoder.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Decoder,
    Mixture,
    Rows,
    Local,
}

/// What an attack wants.
fn kind_for(attack: &Attack) -> Kind {
    match (attack.wants_rows(), attack.wants_experts()) {
        _ if attack.wants_local() => Kind::Local,
        (true, _) => Kind::Rows,
        (false, true) => Kind::Mixture,
        (false, false) => Kind::Decoder,
    }
}

/// The model with rows of four experts, of which a token passes two.
fn with_experts(model: &mut Model, rows: u16) {
    mixture(model, rows);
    model.check().unwrap();
}

fn manifest(directory: &Path, kind: Kind) -> (Arc<Manifest>, Arc<Dataset>) {
    let text = |name: &str| {
        let bytes = "to muster is to gather, and to inspect. ".repeat(40).into_bytes();
        vec![Ok::<_, StoreError>(SourceText { name: name.into(), bytes })]
    };
    let router = (kind == Kind::Rows).then_some(RouterSize { rows: 2, tokens: 8 });
    let data = dataset::pack_routed(text("train"), text("held out"), directory, router, &mut |_| ()).unwrap();
    let nobody = MemberId([0; 32]);
    let makers = Makers { organiser: nobody, steward: nobody, nonce: [0; 16] };
    let bytes = Data { router: None, ..data.clone() };
    let settings = Settings::parse(Path::new("run.toml"), TINY).unwrap();
    let mut manifest = Manifest { data: data.clone(), ..settings.manifest(&makers, bytes).unwrap() };
    match kind {
        Kind::Decoder => {}
        Kind::Mixture => with_experts(&mut manifest.model, 1),
        Kind::Rows => with_experts(&mut manifest.model, 2),
        Kind::Local => local(&mut manifest, LEAVES),
    }
    (Arc::new(manifest), Arc::new(Dataset::open(directory, &data).unwrap()))
}

/// A round of a decoder on a state of its own.
fn work(round: u32) -> Assignment {
    work_on(Kind::Decoder, round)
}

/// A round on a state of its own.
fn work_on(kind: Kind, round: u32) -> Assignment {
    let directory = tempfile::tempdir().unwrap();
    let (manifest, dataset) = manifest(&directory.path().join("corpus"), kind);
    let (root, state) = Replica::genesis(manifest.clone(), dataset.clone(), 1, None).unwrap().snapshot();
    let row = Row(u16::from(kind == Kind::Rows));
    let mut state = state.select(Layout::of_run(&manifest).path(row));
    state.parameters.iter_mut().for_each(|weight| *weight *= 1.0 + 0.01 * round as f32);
    state.second.fill(1e-6);
    state.shards.iter_mut().for_each(|shard| shard.beta_powers[1] = 0.5);
    let layout = Layout::of_run(&manifest);
    let blocks =
        |part: usize| (0..layout.blocks().len() as u32).filter(move |block| *block as usize % 2 == part);
    let parts = [0, 1].map(|part| blocks(part).map(Block).collect());
    let round = Round(round);
    Assignment {
        seed: round_seed(manifest.run(), round, &root),
        manifest,
        dataset,
        round,
        root,
        state: Arc::new(state),
        slot: Slot(2),
        seats: 4,
        route: (kind == Kind::Rows).then(|| Route { row, open: [Row(0), Row(1)].into_iter().collect() }),
        quota: LEAVES,
        seating: (0..4)
            .map(|slot| Seat {
                member: MemberId([slot; 32]),
                quota: LEAVES,
                row: Row(row.0 * (slot / 2) as u16),
            })
            .collect(),
        parts: parts.to_vec(),
        deadline: Instant::now() + Duration::from_secs(600),
        stop: Arc::default(),
        spares: Spares::default(),
        scratch: None,
    }
}

fn contribute(conduct: &dyn NodeConduct, work: &Assignment) -> Summed {
    conduct.contribute(work, &mut Exact::new(1, None).unwrap())
}

fn attack(name: &str, coalition: &[u8]) -> Arc<dyn NodeConduct> {
    let coalition = Coalition::of(coalition.iter().map(|slot| MemberId([*slot; 32])));
    name.parse::<Attack>().unwrap().conduct(&Campaign { coalition, ..Campaign::from(Round(FROM)) })
}

fn rows(summed: &Summed) -> Rows {
    let probe = Probe::exact(&FREEZE);
    List::new(summed.leaves.iter().map(|(q, loss)| probe.row(q, *loss)).collect()).unwrap()
}

fn commit(summed: &Summed) -> Commit {
    let digest = Digest::default();
    let leaves = summed.leaves.len() as u32;
    let (round, slot, profile, loss) = (Round(FROM), Slot(2), Profile::Exact, summed.loss);
    let route = None;
    Commit { round, head: digest, state: digest, slot, seats: 4, route, leaves, profile, loss, root: digest }
}

/// The first bad contribution of an attack on a decoder, and the honest one.
fn first(attack: &dyn NodeConduct) -> (Summed, Summed) {
    first_on(Kind::Decoder, attack)
}

/// The first bad contribution of an attack, and the honest one.
fn first_on(kind: Kind, attack: &dyn NodeConduct) -> (Summed, Summed) {
    (FROM - 5..FROM).for_each(|round| drop(contribute(attack, &work_on(kind, round))));
    (contribute(attack, &work_on(kind, FROM)), contribute(&HonestNode, &work_on(kind, FROM)))
}

/// The digests that an aggregator of three inputs signs for a part that adds them up, and the right one.
fn reduced(conduct: &dyn NodeConduct) -> (Vec<Digest>, Digest) {
    let mut sealed = Bitmap::default();
    [0, 1, 3].into_iter().for_each(|slot| sealed.insert(Slot(slot)));
    let rule = |inputs: &Bitmap| {
        let values = vec![vec![inputs.slots().map(|slot| f32::from(slot.0) + 1.0).sum()]];
        Some(inflate::signed(Reduced { values, digest: Digest::default(), factors: Vec::new() }))
    };
    let part = AggregatorView { round: Round(FROM), shard: ShardId(1), sealed, rule: &rule };
    let signed = conduct.reduce(&part).into_iter().map(|reduced| reduced.digest).collect();
    (signed, part.reduce(sealed).unwrap().digest)
}

#[test]
fn all_are_honest_before_their_round() {
    let all = [Kind::Decoder, Kind::Mixture, Kind::Rows, Kind::Local].map(|kind| work_on(kind, 4));
    let honest = all.each_ref().map(|work| contribute(&HonestNode, work));
    for attack in ATTACKS {
        let (work, honest) = (&all[kind_for(attack) as usize], &honest[kind_for(attack) as usize]);
        let conduct = attack.conduct(&Campaign::from(Round(FROM)));
        let summed = contribute(&*conduct, work);
        let same = summed.q == honest.q && summed.loss == honest.loss && summed.leaves == honest.leaves;
        assert!(same && conduct.stays(Round(4)), "{}", attack.name);
    }
}

/// What each attack says in its first round, against what is said to give it away.
#[test]
fn each_is_betrayed_by_what_it_is_said_to_be() {
    for played in ATTACKS {
        let Attack { name, betrayal: Betrayal { wrong, rhythm }, .. } = played;
        let conduct = attack(name, &[]);
        let (summed, honest) = first_on(kind_for(played), &*conduct);
        let commit = commit(&summed);
        let probe = Probe::exact(&FREEZE);
        let sketch = probe.sketch(&summed.q);
        let asked = AuditedContribution { freeze: FREEZE, probe: &probe, commit: &commit, sketch: &sketch };
        let sealed = conduct.seal(&asked, rows(&summed));
        let table = sealed.clone().unwrap_or_else(|| rows(&summed));
        let adds_up = probe.sum(&table) == (probe.sketch(&summed.q), summed.loss);
        let differ = table.iter().zip(rows(&honest).iter()).filter(|(said, is)| said != is).count();
        assert_eq!(adds_up, !matches!(wrong, Wrong::Sum | Wrong::Hidden), "{name}");
        assert_eq!(conduct.serves(Round(FROM), true), *wrong != Wrong::Hidden, "{name}");
        assert_eq!(differ, wrong.rows(LEAVES) as usize, "{name}");
        let opened = conduct.open(Round(FROM), table.clone());
        // Who only leaves owes nothing.
        let stays = conduct.stays(Round(FROM)) || matches!(wrong, Wrong::Nothing(_));
        let answers = stays && sealed.is_some() && opened.as_ref() == Some(&table);
        assert_eq!(answers, *wrong != Wrong::Silence, "{name}");
        let (said, (reduced, right)) = (conduct.commit(commit.clone()), reduced(&*conduct));
        let two = said.len() > 1 && said[0] != said[1] || reduced.len() > 1 && reduced[0] != reduced[1];
        assert_eq!(two, *wrong == Wrong::Words, "{name}");
        let false_part = reduced.len() == 1 && reduced[0] != right;
        assert_eq!(false_part, matches!(wrong, Wrong::Part | Wrong::Block), "{name}");
        assert!(rhythm.bad(0), "{name}");
    }
}

#[test]
fn attacks_with_a_rhythm_keep_it() {
    for Attack { name, betrayal, .. } in ATTACKS.iter().filter(|attack| attack.betrayal.wrong.rows(1) > 0) {
        let rounds = match betrayal.rhythm {
            Rhythm::Always => continue,
            Rhythm::Every(rounds) => rounds,
            Rhythm::Once => 1,
        };
        let conduct = attack(name, &[]);
        for since in 0..=rounds {
            let work = work(FROM + since);
            let same = contribute(&*conduct, &work).q == contribute(&HonestNode, &work).q;
            assert_eq!(same, !betrayal.rhythm.bad(since), "{name} {since}");
        }
    }
}

#[test]
fn every_attack_says_what_it_is() {
    for attack in ATTACKS {
        let about = attack.about();
        assert!(about.starts_with("Peer that ") && about.len() < 130, "{about}");
        assert_eq!(attack.name.parse::<Attack>().unwrap(), *attack);
        assert_eq!(ATTACKS.iter().filter(|other| *other == attack).count(), 1, "{}", attack.name);
    }
    let spec = include_str!("../../../../spec/model.md");
    let table: Vec<&str> = spec.lines().filter(|line| line.starts_with("| ")).collect();
    let listed = |name: &str| {
        table.iter().any(|row| {
            row.split('|').nth(1).is_some_and(|names| names.split(',').any(|listed| listed.trim() == name))
        })
    };
    for attack in ATTACKS {
        assert!(listed(attack.name), "{} is not in the table of spec/model.md", attack.name);
    }
    let unknown = "flop".parse::<Attack>().unwrap_err().to_string();
    assert!(unknown.contains("flip, lazy"), "{unknown}");
}

#[test]
fn lazy_commits_what_it_computed_before() {
    let conduct = attack("lazy", &[]);
    let before = contribute(&*conduct, &work(FROM - 1));
    let late = contribute(&*conduct, &Assignment { quota: 5, ..work(FROM) });
    assert_eq!(late.leaves.len(), 5);
    assert_eq!((&late.leaves[2], &late.leaves[3]), (&before.leaves[2], &before.leaves[0]));
}

#[test]
fn inner_products_are_turned_and_hidden_ones_are_not() {
    let inner = |one: &Summed, other: &Summed| -> f64 {
        one.q.iter().zip(&other.q).map(|(one, other)| f64::from(*one) * f64::from(*other)).sum()
    };
    for name in ["flip", "sign", "ipm-0.1", "ipm-0.6"] {
        let (summed, honest) = first(&*attack(name, &[]));
        assert!(inner(&summed, &honest) < 0.0, "{name}");
    }
    for name in ["alie", "int8", "bf16", "half"] {
        let (summed, honest) = first(&*attack(name, &[]));
        assert!(inner(&summed, &honest) > 0.0, "{name}");
    }
    let (small, large) = (first(&*attack("ipm-0.1", &[])).0, first(&*attack("ipm-0.6", &[])).0);
    assert!(inner(&small, &small) < 0.1 * inner(&large, &large));
}

#[test]
fn a_coalition_agrees_on_whom_it_mimics() {
    let victim = contribute(&HonestNode, &Assignment { slot: Slot(1), ..work(FROM) });
    let both = [0u8, 2];
    for slot in both {
        let work = Assignment { slot: Slot(slot.into()), ..work(FROM) };
        assert_eq!(contribute(&*attack("mimic", &both), &work).q, victim.q);
    }
    let before = contribute(&HonestNode, &Assignment { slot: Slot(2), ..work(FROM) });
    let copy = contribute(&*attack("copy", &[3]), &Assignment { slot: Slot(3), ..work(FROM) });
    assert_eq!((copy.q, copy.loss), (before.q, before.loss));
}

#[test]
fn members_of_one_machine_meet_in_a_folder() {
    let directory = tempfile::tempdir().unwrap();
    let meeting =
        |name| Coalition::meeting(directory.path(), MemberId([name; 32]), "nowhere".as_ref()).unwrap();
    let first = meeting(2);
    assert_eq!(first.honest(&work(1)), [0, 1, 3].map(Slot));
    meeting(0);
    assert_eq!(first.honest(&work(1)), [1, 3].map(Slot));
}

#[test]
fn a_place_is_wrong_and_nothing_else() {
    let layout = Layout::of(&work(FROM).manifest.model);
    let blocks = layout.blocks();
    let turned = |name| {
        let (summed, honest) = first(&*attack(name, &[]));
        let differs = |block: &&muster_core::layout::BlockRange| {
            summed.q[block.range.clone()] != honest.q[block.range.clone()]
        };
        blocks.iter().filter(differs).count()
    };
    assert_eq!(turned("one-block"), 1);
    assert_eq!(turned("one-tensor"), 1);
    assert_eq!(turned("one-part"), blocks.len() / 2);
    assert_eq!(turned("spread"), blocks.len());
}

#[test]
fn commit_7_only_what_the_product_sums_is_checked_before_it_is_committed_to() {
    let summed = contribute(&HonestNode, &work(FROM));
    assert!(summed.trace.as_ref().unwrap().fits(1, &summed.q, summed.loss));
    let (cheated, _) = first(&*attack("flip", &[]));
    assert!(cheated.trace.is_none());
}

#[test]
fn what_is_delivered() {
    let parts = || (0..5).map(|part| (Part(part), MemberId([1; 32]))).collect::<Vec<_>>();
    let count = |name| attack(name, &[]).deliver(Round(FROM), parts()).map(|parts| parts.len());
    assert_eq!([count("flip"), count("withhold"), count("stall")], [Some(5), Some(0), None]);
    assert_eq!([count("partial"), count("thrash")], [Some(3), Some(5)]);
    assert_eq!(attack("stall", &[]).deliver(Round(FROM - 1), parts()), Some(parts()));
}
