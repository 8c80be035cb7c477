use std::collections::BTreeMap;
use std::sync::Arc;

use super::*;
use crate::audit::judge;
use crate::codec::{List, Text};
use crate::contribution::{Commitment, PackedContribution, PartDigest};
use crate::ids::{Digest, MemberId, Part, Round, ShardId};
use crate::ledger::Ledger;
use crate::manifest::fixture::tiny;
use crate::manifest::{Profile, Timers};
use crate::messages::enrol::{Enrol, Invitation, InvitationSecret, Role};
use crate::messages::evidence::Evidence;
use crate::messages::record::{Freeze, Inputs, Reassign, Reassigned};
use crate::messages::round::{Bitmap, Commit};
use crate::messages::wire::BlockData;
use crate::reduction::{ReducedBlock, Reducer};
use crate::sign::Identity;
use crate::state::{Arithmetic, LeafJob, ShardRoots, State, StateRoots, Update};

const NODES: u8 = 4;
const STEWARD: u8 = 2;

fn id(secret: u8) -> Identity {
    Identity::from_secret(&[secret; 32])
}

fn node(number: u8) -> Identity {
    id(10 + number)
}

pub(in crate::audit) fn manifest() -> Manifest {
    let mut manifest = tiny(id(1).id(), id(STEWARD).id(), 4, NODES.into());
    manifest.audit.recheck_ppm = 0;
    manifest.timers = Timers { commit: 1000, part: 1000, result: 1000, audit: 1000, final_audit: 1000 };
    manifest.check().unwrap();
    manifest
}

/// No leaf is recomputed here.
struct NoArithmetic;

impl Arithmetic for NoArithmetic {
    fn initial(&mut self, _: &Manifest, _: &[Vec<u32>]) -> State {
        unreachable!("parts are judged without a state")
    }

    fn leaf(&mut self, _: &Manifest, _: &LeafJob<'_>, _: &mut [i32]) -> i64 {
        0
    }

    fn apply(&mut self, _: &Manifest, _: &mut State, _: &Update) {}

    fn evaluate(&mut self, _: &Manifest, _: &State, _: &[Vec<u32>]) -> f64 {
        0.0
    }
}

/// A round of four nodes with everything sealed up to its inputs.
struct Scene {
    manifest: Arc<Manifest>,
    ledger: Ledger,
    freeze: Signed<Record>,
    inputs: Vec<Signed<Record>>,
    contributions: Vec<Vec<i32>>,
    /// Members whose blocks nobody hands out.
    withheld: Vec<MemberId>,
}

impl Witness for Scene {
    fn state(&mut self, _: &Digest, _: &[ShardId]) -> Option<State> {
        None
    }

    fn windows(&mut self, _: &[u64]) -> Option<Vec<Vec<u32>>> {
        None
    }

    fn contribution(&mut self, _: Round, _: &MemberId) -> Option<Arc<PackedContribution>> {
        None
    }

    fn round(&mut self, round: Round) -> Option<RoundView> {
        self.ledger.round(round).cloned()
    }

    fn block(&mut self, _: Round, member: &MemberId, block: Block) -> Option<BlockData> {
        let number = (0..NODES).find(|number| node(*number).id() == *member)?;
        let q = self.contributions.get(usize::from(number))?;
        let layout = self.ledger.layout();
        (!self.withheld.contains(member))
            .then(|| Commitment::new(layout, q).block(layout, q, block))
            .flatten()
    }
}

fn roots() -> StateRoots {
    let digest = Digest([5; 32]);
    StateRoots::from([ShardRoots {
        step: 0,
        beta_powers: [0; 2],
        exponents: digest,
        parameters: digest,
        first: digest,
        second: digest,
    }])
}

/// Numbers that look like sums of leaves, another sequence for each node.
fn contribution(layout: &Layout, number: u8) -> Vec<i32> {
    let of = |c: usize| ((c * 37 + usize::from(number) * 11) % 101) as i32 - 50 + i32::from(number);
    (0..layout.parameters()).map(of).collect()
}

impl Scene {
    fn new() -> Self {
        let manifest = Arc::new(manifest());
        let ledger = Ledger::new(manifest.clone());
        let contributions = (0..NODES).map(|number| contribution(ledger.layout(), number)).collect();
        let placeholder = id(STEWARD).sign(manifest.run(), &ledger.record(Body::Open(roots())));
        let mut scene = Self {
            manifest,
            ledger,
            freeze: placeholder.clone(),
            inputs: Vec::new(),
            contributions,
            withheld: Vec::new(),
        };
        scene.seal(Body::Open(roots()));
        for number in 0..NODES {
            let run = scene.manifest.run();
            let (role, secret) = (Role::Node, InvitationSecret::new([number; 32]));
            let invitation =
                Invitation { role, uses: 1, expires: u64::MAX, key: secret.key(), founder: false };
            let invitation = id(1).sign(run, &invitation);
            let enrol = Enrol {
                invitation: Some(secret.present(run, invitation, node(number).id())),
                addresses: List::new(vec![Text::new("host:1").unwrap()]).unwrap(),
                coins: None,
                name: Default::default(),
                engagement: Default::default(),
            };
            scene.seal(Body::Admit(node(number).sign(run, &enrol)));
        }
        let seats = List::new(scene.ledger.derived_seats()).unwrap();
        scene.seal(Body::Begin(seats));
        let commits = List::new((0..NODES).map(|number| scene.commit(number, 1)).collect()).unwrap();
        let state = roots().root();
        scene.freeze = scene.seal(Body::Freeze(Freeze { round: Round(0), state, commits }));
        let parts = vec![all(); scene.view().parts().len()];
        scene.seal_inputs(0, parts);
        scene
    }

    fn seal(&mut self, body: Body) -> Signed<Record> {
        let signed = id(STEWARD).sign(self.manifest.run(), &self.ledger.record(body));
        self.ledger.apply(&signed).unwrap();
        signed
    }

    fn seal_inputs(&mut self, attempt: u8, parts: Vec<Bitmap>) {
        let inputs = Inputs { round: Round(0), attempt, parts: List::new(parts).unwrap() };
        let signed = self.seal(Body::Inputs(inputs));
        self.inputs.push(signed);
    }

    fn view(&self) -> RoundView {
        self.ledger.current().unwrap().clone()
    }

    fn commit(&self, number: u8, leaves: u32) -> Signed<Commit> {
        let view = self.view();
        let q = &self.contributions[usize::from(number)];
        let commit = Commit {
            round: Round(0),
            head: view.head(),
            state: view.state().root(),
            slot: Slot(number.into()),
            seats: NODES.into(),
            route: None,
            leaves,
            profile: Profile::Exact,
            loss: 1,
            root: Commitment::new(self.ledger.layout(), q).root(),
        };
        node(number).sign(self.manifest.run(), &commit)
    }

    /// What the rule gives on these slots.
    fn reduced(&self, part: Part, slots: &Bitmap) -> Vec<Vec<f32>> {
        let (view, layout) = (self.view(), self.ledger.layout());
        let blocks = &view.parts()[part.index()].blocks;
        let input =
            |slot: Slot, block| Some(&self.contributions[slot.index()][layout.block(block)?.range.clone()]);
        let sealed = SealedInputs { freeze: view.freeze_digest().unwrap(), slots };
        reduce(&self.manifest, layout, blocks, &sealed, |slot| view.commitment(slot), input).unwrap().values
    }

    fn aggregator(&self, part: Part, attempt: u8) -> Identity {
        let member = self.view().reducers(part, attempt).next().unwrap();
        (0..NODES).map(node).find(|node| node.id() == member).unwrap()
    }

    fn result(&self, part: Part, attempt: u8, values: &[Vec<f32>]) -> PartResult {
        let digest = values.iter().fold(PartDigest::default(), |digest, block| digest.block(block)).finish();
        let freeze = self.view().freeze_digest().unwrap();
        PartResult { round: Round(0), part, attempt, freeze, inputs: all(), digest }
    }

    fn signed(&self, result: &PartResult) -> Signed<PartResult> {
        self.aggregator(result.part, result.attempt).sign(self.manifest.run(), result)
    }

    fn evidence(&self, result: Signed<PartResult>, attempt: usize) -> Evidence {
        let (freeze, inputs) = (self.freeze.clone(), self.inputs[attempt].clone());
        Evidence::Aggregation(Reduction { freeze, inputs, result })
    }

    fn judge(&mut self, evidence: &Evidence) -> Judgement {
        let manifest = self.manifest.clone();
        judge(&manifest, evidence, self, &mut NoArithmetic)
    }

    fn judge_values(&mut self, values: &[Vec<f32>]) -> Judgement {
        let result = self.result(Part(1), 0, values);
        let evidence = self.evidence(self.signed(&result), 0);
        self.judge(&evidence)
    }
}

fn all() -> Bitmap {
    some(0..NODES)
}

fn some(slots: impl IntoIterator<Item = u8>) -> Bitmap {
    let mut bitmap = Bitmap::default();
    slots.into_iter().for_each(|slot| bitmap.insert(Slot(slot.into())));
    bitmap
}

fn guilty(judgement: &Judgement, culprit: &Identity, kind: FindingKind) -> bool {
    matches!(judgement, Judgement::Guilty { culprit: found, finding, round: Round(0), .. }
        if *found == culprit.id() && *finding == kind)
}

#[test]
fn audit_21_an_honest_part_convicts_nobody() {
    let mut scene = Scene::new();
    for part in (0..scene.view().parts().len() as u16).map(Part) {
        let values = scene.reduced(part, &all());
        let result = scene.signed(&scene.result(part, 0, &values));
        let evidence = scene.evidence(result, 0);
        assert!(matches!(scene.judge(&evidence), Judgement::NotGuilty(_)));
    }
}

#[test]
fn audit_21_every_wrong_part_convicts_its_aggregator() {
    let mut scene = Scene::new();
    let right = scene.reduced(Part(1), &all());
    let culprit = scene.aggregator(Part(1), 0);
    let mut one_bit = right.clone();
    one_bit[0][3] = f32::from_bits(one_bit[0][3].to_bits() ^ 1);
    let scaled: Vec<Vec<f32>> = right.iter().map(|block| block.iter().map(|v| v * 10.0).collect()).collect();
    let mut nan = right.clone();
    nan[0][0] = f32::NAN;
    let omits = scene.reduced(Part(1), &some([0, 1, 3]));
    let blocks: Vec<Vec<f32>> = right.iter().rev().cloned().collect();
    for wrong in [one_bit, scaled, nan, omits, blocks, Vec::new()] {
        let judgement = scene.judge_values(&wrong);
        assert!(guilty(&judgement, &culprit, FindingKind::AggregationMismatch), "{judgement:?}");
    }
}

#[test]
fn round_6_blocks_that_are_reduced_one_by_one_in_any_order_are_the_part() {
    let scene = Scene::new();
    let (view, layout) = (scene.view(), scene.ledger.layout().clone());
    let blocks = &view.parts()[1].blocks;
    let sealed = SealedInputs { freeze: view.freeze_digest().unwrap(), slots: &all() };
    let commitment = |slot| view.commitment(slot);
    let input =
        |slot: Slot, block| Some(&scene.contributions[slot.index()][layout.block(block)?.range.clone()]);
    let reducer = Reducer::new(&scene.manifest, &layout, &sealed, commitment).unwrap();
    let early = |block: &Block| Some((*block, reducer.block(*block, |slot| input(slot, *block))?));
    let mut early: BTreeMap<Block, ReducedBlock> = blocks.iter().rev().filter_map(early).collect();
    assert_eq!(early.len(), blocks.len());
    let part = reducer.part(blocks, |block| early.remove(&block)).unwrap();
    let at_once = reduce(&scene.manifest, &layout, blocks, &sealed, commitment, input).unwrap();
    assert_eq!((part.digest, part.values, part.factors), (at_once.digest, at_once.values, at_once.factors));
    assert!(reducer.part(blocks, |block| early.remove(&block)).is_none(), "one block is missing");
}

#[test]
fn audit_21_an_input_that_counted_twice_convicts() {
    let mut scene = Scene::new();
    let (view, layout) = (scene.view(), scene.ledger.layout().clone());
    let blocks = view.parts()[1].blocks.clone();
    // Slot 3 is given slot 2's integers, as if that had counted twice.
    let input = |slot: Slot, block| {
        let from = if slot == Slot(3) { 2 } else { slot.index() };
        Some(&scene.contributions[from][layout.block(block)?.range.clone()])
    };
    let sealed = SealedInputs { freeze: view.freeze_digest().unwrap(), slots: &all() };
    let twice = reduce(&scene.manifest, &layout, &blocks, &sealed, |slot| view.commitment(slot), input)
        .unwrap()
        .values;
    let culprit = scene.aggregator(Part(1), 0);
    assert!(guilty(&scene.judge_values(&twice), &culprit, FindingKind::AggregationMismatch));
}

#[test]
fn audit_21_nobody_is_convicted_over_inputs_that_it_did_not_sign() {
    let mut scene = Scene::new();
    // Right over fewer inputs: nothing that was sealed. It never counts, and convicts nobody.
    let values = scene.reduced(Part(1), &some([0, 1, 3]));
    let other = PartResult { inputs: some([0, 1, 3]), ..scene.result(Part(1), 0, &values) };
    assert!(scene.ledger.check_result(&scene.signed(&other)).is_err());
    let evidence = scene.evidence(scene.signed(&other), 0);
    assert!(matches!(scene.judge(&evidence), Judgement::Malformed(_)));
    // A steward that signs other inputs afterwards frames nobody.
    let run = scene.manifest.run();
    let honest = scene.signed(&scene.result(Part(1), 0, &scene.reduced(Part(1), &all())));
    let genuine = scene.inputs[0].verify(run).unwrap().into_inner();
    let parts = List::new(vec![some([0, 1, 3]); scene.view().parts().len()]).unwrap();
    let forged = Record { body: Body::Inputs(Inputs { round: Round(0), attempt: 0, parts }), ..genuine };
    let forged = id(STEWARD).sign(run, &forged);
    for result in [honest.clone(), scene.signed(&other)] {
        let freeze = scene.freeze.clone();
        let evidence = Evidence::Aggregation(Reduction { freeze, inputs: forged.clone(), result });
        assert!(matches!(scene.judge(&evidence), Judgement::Malformed(_)));
    }
    // Nor does another freeze, with another commitment of a colluding sender.
    let genuine = scene.freeze.verify(run).unwrap().into_inner();
    scene.contributions[3][0] += 1;
    let commits = (0..NODES).map(|number| scene.commit(number, 1)).collect();
    let body = Freeze { round: Round(0), state: roots().root(), commits: List::new(commits).unwrap() };
    let freeze = id(STEWARD).sign(run, &Record { body: Body::Freeze(body), ..genuine });
    scene.contributions[3][0] -= 1;
    let evidence =
        Evidence::Aggregation(Reduction { freeze, inputs: scene.inputs[0].clone(), result: honest });
    assert!(matches!(scene.judge(&evidence), Judgement::Malformed(_)));
}

#[test]
fn audit_21_only_the_entitled_aggregator_is_judged() {
    let mut scene = Scene::new();
    let wrong = scene.result(Part(1), 0, &[]);
    let stranger = scene.aggregator(Part(2), 0);
    let evidence = scene.evidence(stranger.sign(scene.manifest.run(), &wrong), 0);
    assert!(matches!(scene.judge(&evidence), Judgement::Malformed(_)));
    // Records that the steward did not sign prove nothing.
    let run = scene.manifest.run();
    let freeze = id(9).sign(run, &scene.freeze.verify(run).unwrap().into_inner());
    let (inputs, result) = (scene.inputs[0].clone(), scene.signed(&wrong));
    let evidence = Evidence::Aggregation(Reduction { freeze, inputs, result });
    assert!(matches!(scene.judge(&evidence), Judgement::Malformed(_)));
}

#[test]
fn audit_21_a_withheld_or_false_input_leaves_it_undecided() {
    let mut scene = Scene::new();
    let wrong = scene.result(Part(1), 0, &[]);
    let evidence = scene.evidence(scene.signed(&wrong), 0);
    scene.withheld.push(node(2).id());
    assert!(matches!(scene.judge(&evidence), Judgement::Undecided(_)));
    scene.withheld.clear();
    scene.contributions[2][0] += 1;
    // Any change spoils the proofs of the whole tree.
    assert!(matches!(scene.judge(&evidence), Judgement::Undecided(_)));
}

#[test]
fn audit_21_a_reassigned_part_is_judged_by_its_own_attempt() {
    let mut scene = Scene::new();
    let first = scene.aggregator(Part(1), 0);
    let others = scene.view().aggregators().to_vec();
    let aggregator =
        others.into_iter().find(|slot| scene.view().member_at(*slot) != Some(first.id())).unwrap();
    let moved = Reassigned { part: Part(1), aggregator };
    scene.seal(Body::Reassign(Reassign { round: Round(0), parts: List::new(vec![moved]).unwrap() }));
    scene.seal_inputs(1, vec![all()]);
    let second = scene.aggregator(Part(1), 1);
    assert_ne!(first.id(), second.id());
    for (attempt, culprit) in [(0, &first), (1, &second)] {
        let wrong = scene.result(Part(1), attempt, &[]);
        let evidence = scene.evidence(scene.signed(&wrong), usize::from(attempt));
        let judgement = scene.judge(&evidence);
        assert!(guilty(&judgement, culprit, FindingKind::AggregationMismatch), "{judgement:?}");
        // Inputs of the other attempt do not belong to it.
        let evidence = scene.evidence(scene.signed(&wrong), usize::from(1 - attempt));
        assert!(matches!(scene.judge(&evidence), Judgement::Malformed(_)));
    }
    let right = scene.result(Part(1), 1, &scene.reduced(Part(1), &all()));
    let evidence = scene.evidence(scene.signed(&right), 1);
    assert!(matches!(scene.judge(&evidence), Judgement::NotGuilty(_)));
}

#[test]
fn audit_21_without_the_round_nothing_is_decided() {
    let mut scene = Scene::new();
    let mut wrong = scene.result(Part(1), 0, &[]);
    wrong.round = Round(9);
    let evidence = scene.evidence(scene.signed(&wrong), 0);
    assert!(matches!(scene.judge(&evidence), Judgement::Undecided(_)));
}

#[test]
fn audit_22_two_results_for_one_part_convict() {
    let mut scene = Scene::new();
    let right = scene.result(Part(1), 0, &scene.reduced(Part(1), &all()));
    let wrong = scene.result(Part(1), 0, &[]);
    let other = PartResult { inputs: some([0]), ..wrong.clone() };
    let earlier = PartResult { freeze: Digest::default(), ..wrong.clone() };
    let culprit = scene.aggregator(Part(1), 0);
    let pair = |first: &PartResult, second: &PartResult| {
        Evidence::Results(TwoResults { first: scene.signed(first), second: scene.signed(second) })
    };
    let (lie, same, inputs, freeze) =
        (pair(&right, &wrong), pair(&right, &right), pair(&right, &other), pair(&right, &earlier));
    let mixed = TwoResults {
        first: scene.signed(&right),
        second: scene.aggregator(Part(2), 0).sign(scene.manifest.run(), &wrong),
    };
    assert!(guilty(&scene.judge(&lie), &culprit, FindingKind::Equivocation));
    assert!(matches!(scene.judge(&same), Judgement::NotGuilty(_)));
    for evidence in [inputs, freeze, Evidence::Results(mixed)] {
        assert!(matches!(scene.judge(&evidence), Judgement::Malformed(_)));
    }
}

#[test]
fn agg_1_who_claims_many_leaves_weighs_what_was_recomputed_of_it() {
    let scene = Scene::new();
    let view = scene.view();
    let honest = view.commitment(Slot(0)).unwrap();
    let mut claims = honest.clone();
    claims.commit.leaves = 256;
    let mut commitments = vec![honest; 9];
    commitments.push(&claims);
    let weights = crate::reduction::weights(&scene.manifest, &commitments);
    assert!(weights.iter().all(|weight| *weight == weights[0]), "{weights:?}");
    // By leaves it would weigh up to its cap.
    claims.weight = claims.commit.leaves;
    let weights = crate::reduction::weights(&scene.manifest, &[&[honest; 9][..], &[&claims]].concat());
    assert!(weights[9] > weights[0], "{weights:?}");
}
