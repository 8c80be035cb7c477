use std::sync::Arc;

use super::*;
use crate::audit::reduction::tests::manifest;
use crate::audit::{Claim, claim, judge, judge_steward};
use crate::codec::List;
use crate::contribution::PackedContribution;
use crate::ids::{MemberId, RunId, Slot};
use crate::ledger::RoundView;
use crate::messages::audit::FindingKind;
use crate::messages::evidence::{Evidence, Misconduct};
use crate::messages::record::{Freeze, Outcome, Record};
use crate::messages::round::{Bitmap, Commit, PartResult};
use crate::messages::wire::BlockData;
use crate::rounding::BlockValues;
use crate::sign::{Identity, Signed};
use crate::state::{LeafJob, Shard, ShardRoots, State, Vector};

mod earlier;

const ROUND: Round = Round(5);
const PARTS: usize = 3;

fn id(secret: u8) -> Identity {
    Identity::from_secret(&[secret; 32])
}

fn steward() -> Identity {
    id(2)
}

/// Adds what is present, instead of an optimiser's step.
struct Adds;

impl Arithmetic for Adds {
    fn initial(&mut self, _: &Manifest, _: &[Vec<u32>]) -> State {
        unreachable!("a step begins with a state")
    }

    fn leaf(&mut self, _: &Manifest, _: &LeafJob<'_>, _: &mut [i32]) -> i64 {
        unreachable!("no leaf is recomputed")
    }

    fn apply(&mut self, manifest: &Manifest, state: &mut State, update: &Update) {
        let layout = Layout::of_run(manifest);
        for (block, values) in layout.blocks().iter().zip(&update.blocks) {
            let values = values.iter().flat_map(|values| values.reals().into_owned());
            for (place, value) in block.range.clone().zip(values) {
                state.parameters[place] += value;
                state.first[place] += state.second[place];
            }
        }
        state.shards.iter_mut().for_each(|shard| shard.step += 1);
    }

    fn evaluate(&mut self, _: &Manifest, _: &State, _: &[Vec<u32>]) -> f64 {
        unreachable!("nothing is evaluated")
    }
}

/// A round with its state and its aggregate, as a judge may have them.
struct Scene {
    manifest: Manifest,
    layout: Layout,
    state: Option<State>,
    update: Option<Update>,
}

impl Witness for Scene {
    fn state(&mut self, _: &Digest, _: &[ShardId]) -> Option<State> {
        self.state.clone()
    }

    fn windows(&mut self, _: &[u64]) -> Option<Vec<Vec<u32>>> {
        None
    }

    fn contribution(&mut self, _: Round, _: &MemberId) -> Option<Arc<PackedContribution>> {
        None
    }

    fn round(&mut self, _: Round) -> Option<RoundView> {
        None
    }

    fn block(&mut self, _: Round, _: &MemberId, _: Block) -> Option<BlockData> {
        None
    }

    fn update(&mut self, round: Round) -> Option<Update> {
        self.update.clone().filter(|_| round == ROUND)
    }
}

impl Scene {
    fn new() -> Self {
        let manifest = manifest();
        let layout = Layout::of_run(&manifest);
        let vector = |scale: f32| (0..layout.parameters()).map(|place| place as f32 * scale - 1.0).collect();
        let size = layout.shards()[0].size();
        let shard = Shard { id: ShardId::TRUNK, step: ROUND.0, beta_powers: [0.5, 0.75], size };
        let state = State {
            shards: vec![shard],
            exponents: vec![-12; layout.tensors().len()],
            parameters: vector(0.25),
            first: vector(0.5),
            second: vector(1.0),
        };
        // That they are there says nothing: which blocks count follows from the results.
        let update = Update::whole(&layout, vector(0.125).into_vec());
        Self { manifest, layout, state: Some(state), update: Some(update) }
    }

    fn seal(&self, height: u64, body: Body) -> Signed<Record> {
        let record = Record { height: Height(height), previous: Digest([9; 32]), body };
        steward().sign(self.manifest.run(), &record)
    }

    fn freeze(&self, round: Round) -> Signed<Record> {
        let state = Scene::new().state.unwrap().root();
        let commit = Commit {
            round,
            head: Digest([8; 32]),
            state,
            slot: Slot(0),
            seats: 1,
            route: None,
            leaves: 1,
            profile: self.manifest.profile,
            loss: 0,
            root: Digest([7; 32]),
        };
        let commits = List::new(vec![id(11).sign(self.manifest.run(), &commit)]).unwrap();
        self.seal(30, Body::Freeze(Freeze { round, state, commits }))
    }

    /// The results of the parts whose numbers are given.
    fn results(&self, parts: &[usize]) -> Vec<Option<PartResult>> {
        let (update, freeze) = (Scene::new().update.unwrap(), self.freeze(ROUND));
        let freeze = freeze.verify(self.manifest.run()).unwrap().head();
        let result = |(part, (_, blocks)): (usize, (ShardId, Vec<Block>))| {
            let values = blocks.iter().map(|block| update.block(&self.layout, *block).unwrap());
            let digest = values.fold(PartDigest::default(), |digest, values| digest.block(&values)).finish();
            let (number, attempt, inputs) = (Part(part as u16), 0, Bitmap::default());
            let result = PartResult { round: ROUND, part: number, attempt, freeze, inputs, digest };
            parts.contains(&part).then_some(result)
        };
        self.parts().into_iter().enumerate().map(result).collect()
    }

    fn parts(&self) -> Vec<(ShardId, Vec<Block>)> {
        parts_in(&self.layout, 1, &[ShardId::TRUNK], PARTS).unwrap()
    }

    /// The state that a round with results of these parts gives.
    fn after(&self, parts: &[usize]) -> StateRoots {
        let (mut state, mut update) = (Scene::new().state.unwrap(), Scene::new().update.unwrap());
        let blocks = self.parts();
        let counted: Vec<Block> = parts.iter().flat_map(|part| blocks[*part].1.clone()).collect();
        for (block, values) in (0..).map(Block).zip(&mut update.blocks) {
            *values = values.take().filter(|_| counted.contains(&block));
        }
        Adds.apply(&self.manifest, &mut state, &update);
        state.roots()
    }

    fn outcome(&self, results: Vec<Option<PartResult>>, state: StateRoots) -> Outcome {
        let sign =
            |result: Option<PartResult>| result.map(|result| id(11).sign(self.manifest.run(), &result));
        Outcome {
            round: ROUND,
            results: List::new(results.into_iter().map(sign).collect()).unwrap(),
            echoes: List::default(),
            state,
            seats: List::default(),
            credits: List::default(),
            seconds: List::default(),
            steps: List::default(),
        }
    }

    fn judge(&mut self, freeze: Signed<Record>, outcome: Signed<Record>) -> Judgement {
        let manifest = self.manifest.clone();
        let before = Scene::new().state.unwrap().roots();
        let misconduct =
            Misconduct::Root(WrongRoot { freeze, outcome, before, shard: ShardId::TRUNK, earlier: None });
        let alone = judge_steward(&manifest, &misconduct);
        let judgement = judge(&manifest, &Evidence::Misconduct(misconduct), self, &mut Adds);
        // The messages alone convict and acquit nobody.
        match (&judgement, alone) {
            (Judgement::Malformed(why), alone) => assert_eq!(alone, Judgement::Malformed(why.clone())),
            (_, alone) => assert!(matches!(alone, Judgement::Undecided(_)), "{alone:?}"),
        }
        judgement
    }

    fn judge_root(&mut self, parts: &[usize], state: StateRoots) -> Judgement {
        let outcome = self.seal(33, Body::Outcome(self.outcome(self.results(parts), state)));
        self.judge(self.freeze(ROUND), outcome)
    }
}

#[test]
fn audit_13_a_root_that_the_results_do_not_give_convicts_the_steward() {
    let mut scene = Scene::new();
    let right = scene.after(&[0, 1, 2]);
    let (shard, other) = (right.shards[0], Digest([1; 32]));
    let one = |shard| StateRoots::from([shard]);
    let wrong = [
        one(ShardRoots { step: shard.step + 1, ..shard }),
        one(ShardRoots { beta_powers: [0; 2], ..shard }),
        one(ShardRoots { exponents: other, ..shard }),
        one(ShardRoots { parameters: other, ..shard }),
        one(ShardRoots { first: other, ..shard }),
        one(ShardRoots { second: other, ..shard }),
        // A result left out of the state, or one that is not there taken in.
        scene.after(&[0, 2]),
        Scene::new().state.unwrap().roots(),
    ];
    for sealed in wrong {
        match scene.judge_root(&[0, 1, 2], sealed.clone()) {
            Judgement::Guilty { culprit, round: ROUND, finding: FindingKind::StewardMisconduct, detail } => {
                assert_eq!(culprit, steward().id());
                assert!(
                    detail.contains(&sealed.root().to_string()) && detail.contains("record 33"),
                    "{detail}"
                );
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(matches!(scene.judge_root(&[0, 2], right), Judgement::Guilty { .. }));
}

#[test]
fn audit_13_a_root_that_the_results_give_convicts_nobody() {
    let mut scene = Scene::new();
    for parts in [&[0, 1, 2][..], &[0, 2], &[1], &[]] {
        let sealed = scene.after(parts);
        let judgement = scene.judge_root(parts, sealed);
        assert!(matches!(judgement, Judgement::NotGuilty(_)), "{parts:?}: {judgement:?}");
    }
    // Nor does it matter in which attempt a part was reduced.
    let (mut results, sealed) = (scene.results(&[0, 1, 2]), scene.after(&[0, 1, 2]));
    results[1].as_mut().unwrap().attempt = 1;
    let outcome = scene.seal(33, Body::Outcome(scene.outcome(results, sealed)));
    assert!(matches!(scene.judge(scene.freeze(ROUND), outcome), Judgement::NotGuilty(_)));
    // What stands in blocks that were left out is nothing.
    let left_out = scene.parts()[1].1[0];
    let nothing = vec![f32::NAN; scene.layout.block(left_out).unwrap().range.len()];
    scene.update.as_mut().unwrap().put(&scene.layout, left_out, &nothing).unwrap();
    let sealed = scene.after(&[0, 2]);
    assert!(matches!(scene.judge_root(&[0, 2], sealed), Judgement::NotGuilty(_)));
    // A round without anybody who reduces is a step, too.
    let outcome = scene.seal(33, Body::Outcome(scene.outcome(Vec::new(), scene.after(&[]))));
    let judgement = scene.judge(scene.freeze(ROUND), outcome);
    assert!(matches!(judgement, Judgement::NotGuilty(_)), "{judgement:?}");
}

#[test]
fn audit_13_without_state_or_aggregate_a_root_is_undecided() {
    let state = |change: &dyn Fn(&mut State)| {
        let mut scene = Scene::new();
        scene.state.iter_mut().for_each(change);
        scene
    };
    let update = |change: &dyn Fn(&mut Update)| {
        let mut scene = Scene::new();
        scene.update.iter_mut().for_each(change);
        scene
    };
    // As many values, and others.
    let other = |update: &mut Update| {
        let count = update.blocks[0].as_ref().unwrap().count();
        update.blocks[0] = Some(Arc::new(BlockValues::raw(vec![9.0; count])));
    };
    let (without, of_round) = ("the state", "the aggregate");
    let lacking = [
        (Scene { state: None, ..Scene::new() }, without),
        (state(&|state| state.shards[0].step = 7), without),
        (state(&|state| state.shards.clear()), without),
        (state(&|state| state.parameters[3] += 1.0), without),
        (state(&|state| state.first = Vector::default()), without),
        (state(&|state| state.exponents.truncate(1)), without),
        (Scene { update: None, ..Scene::new() }, of_round),
        (update(&other), of_round),
        (update(&|update| update.blocks[0] = None), of_round),
        (update(&|update| update.blocks[0] = Some(Arc::new(BlockValues::raw(vec![7.0; 9])))), of_round),
        (update(&|update| update.blocks.truncate(2)), of_round),
        (update(&|update| update.blocks.push(None)), of_round),
        (update(&|update| update.blocks.clear()), of_round),
    ];
    for (mut scene, what) in lacking {
        let (right, wrong) = (scene.after(&[0, 1, 2]), scene.after(&[0, 1]));
        for sealed in [right, wrong] {
            let judgement = scene.judge_root(&[0, 1, 2], sealed);
            assert!(
                matches!(&judgement, Judgement::Undecided(why) if why.contains(what) && !why.contains(';')),
                "{judgement:?}"
            );
        }
    }
    let mut nothing = Scene { state: None, update: None, ..Scene::new() };
    let sealed = nothing.after(&[0]);
    let judgement = nothing.judge_root(&[0], sealed);
    assert!(
        matches!(&judgement, Judgement::Undecided(why) if why.contains(without) && why.contains(of_round)),
        "{judgement:?}"
    );
}

#[test]
fn audit_13_records_that_do_not_fit_convict_nobody() {
    let mut scene = Scene::new();
    let run = scene.manifest.run();
    let wrong = scene.after(&[0, 1]);
    let freeze = scene.freeze(ROUND);
    let good = scene.outcome(scene.results(&[0, 1, 2]), wrong.clone());
    let mut malformed = |freeze: &Signed<Record>, outcome: Signed<Record>, what: &str| {
        let judgement = scene.judge(freeze.clone(), outcome);
        assert!(matches!(judgement, Judgement::Malformed(_)), "{what}: {judgement:?}");
    };
    let sealing = Scene::new();
    let seal = |outcome: &Outcome| sealing.seal(33, Body::Outcome(outcome.clone()));
    let own = |record: &Signed<Record>| id(11).sign(run, &record.verify(run).unwrap().into_inner());
    malformed(&own(&freeze), seal(&good), "a freeze of one's own");
    malformed(&freeze, own(&seal(&good)), "an outcome of one's own");
    malformed(&seal(&good), seal(&good), "two outcomes");
    malformed(&freeze, freeze.clone(), "two freezes");
    malformed(&sealing.freeze(Round(4)), seal(&good), "a freeze of another round");
    malformed(&freeze, seal(&Outcome { round: Round(4), ..good.clone() }), "an outcome of another round");
    let elsewhere = RunId(Digest([7; 32]));
    let foreign = steward().sign(elsewhere, &freeze.verify(run).unwrap().into_inner());
    malformed(&foreign, seal(&good), "a freeze of another run");

    let changed = |change: &dyn Fn(&mut Vec<Option<PartResult>>)| {
        let mut results = sealing.results(&[0, 1, 2]);
        change(&mut results);
        seal(&sealing.outcome(results, wrong.clone()))
    };
    malformed(&freeze, changed(&|results| results.swap(0, 1)), "results in another order");
    let other = |results: &mut Vec<Option<PartResult>>| {
        results[1].as_mut().unwrap().freeze = Digest([3; 32]);
    };
    malformed(&freeze, changed(&other), "a result of another freeze");
    let late = |results: &mut Vec<Option<PartResult>>| results[1].as_mut().unwrap().round = Round(6);
    malformed(&freeze, changed(&late), "a result of another round");
    let many = sealing.layout.blocks().len() + 1;
    malformed(&freeze, changed(&|results| results.resize(many, None)), "more parts than blocks");
    let mut results = good.results.to_vec();
    let said = results[0].as_ref().unwrap().verify(run).unwrap().into_inner();
    results[0] = Some(id(11).sign(elsewhere, &said));
    let unsigned = Outcome { results: List::new(results).unwrap(), ..good.clone() };
    malformed(&freeze, seal(&unsigned), "a result that nobody signed");
}

#[test]
fn a_wrong_root_is_about_a_round_and_the_steward() {
    let scene = Scene::new();
    let outcome = scene.seal(33, Body::Outcome(scene.outcome(scene.results(&[0]), scene.after(&[0]))));
    let about = |freeze| {
        let before = Scene::new().state.unwrap().roots();
        let wrong =
            WrongRoot { freeze, outcome: outcome.clone(), before, shard: ShardId::TRUNK, earlier: None };
        claim(&scene.manifest, &Evidence::Misconduct(Misconduct::Root(wrong)))
    };
    let (culprit, subject) = (steward().id(), steward().id());
    assert_eq!(about(scene.freeze(ROUND)), Ok(Claim { culprit, subject, round: ROUND }));
    let own = scene.freeze(ROUND).verify(scene.manifest.run()).unwrap().into_inner();
    assert!(about(id(11).sign(scene.manifest.run(), &own)).is_err());
}
