//! Steps of rows by the results of an earlier round.

use std::sync::Arc;

use super::*;
use crate::contribution::PackedContribution;
use crate::ids::{Row, RowSet};
use crate::ledger::fixture::chain::with_rows;
use crate::messages::evidence::SealedRound;
use crate::messages::record::RowStep;
use crate::messages::round::Route;

/// The round whose update of row 1 has waited.
const EARLIER: Round = Round(3);
const ROW: ShardId = ShardId(2);

/// Adds to each shard what is present of it, instead of an optimiser's step.
struct AddsToShards;

impl Arithmetic for AddsToShards {
    fn initial(&mut self, manifest: &Manifest, windows: &[Vec<u32>]) -> State {
        Adds.initial(manifest, windows)
    }

    fn leaf(&mut self, manifest: &Manifest, job: &LeafJob<'_>, q: &mut [i32]) -> i64 {
        Adds.leaf(manifest, job, q)
    }

    fn apply(&mut self, manifest: &Manifest, state: &mut State, update: &Update) {
        let layout = Layout::of_run(manifest);
        assert_eq!(state.held().collect::<Vec<_>>(), [ROW], "the shard alone");
        let Some(blocks) = update.shard(&layout, ROW) else { return };
        let first = layout.shard(ROW).unwrap().coefficients.start;
        for (block, values) in layout.blocks_of(ROW).zip(blocks) {
            let values = values.iter().flat_map(|values| values.reals().into_owned());
            for (place, value) in layout.block(block).unwrap().range.clone().zip(values) {
                state.parameters[place - first] += value;
            }
        }
        state.shards.iter_mut().for_each(|shard| shard.step += 1);
    }

    fn evaluate(&mut self, manifest: &Manifest, state: &State, windows: &[Vec<u32>]) -> f64 {
        Adds.evaluate(manifest, state, windows)
    }
}

/// A run of two rows, its state before [`ROUND`], and the aggregates of both rounds.
struct Rows {
    manifest: Manifest,
    layout: Layout,
    state: State,
    aggregates: [(Round, Update); 2],
}

impl Witness for Rows {
    fn state(&mut self, _: &Digest, shards: &[ShardId]) -> Option<State> {
        Some(self.state.select(shards.iter().copied()))
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
        self.aggregates.iter().find(|(of, _)| *of == round).map(|(_, update)| update.clone())
    }
}

impl Rows {
    fn new() -> Self {
        let manifest = with_rows(manifest(), 2, 0);
        let layout = Layout::of_run(&manifest);
        let vector = |scale: f32| (0..layout.parameters()).map(|place| place as f32 * scale - 1.0).collect();
        let shards = layout.path(Row(0)).zip(layout.shards());
        let shards =
            shards.map(|(id, range)| Shard { id, step: ROUND.0, beta_powers: [0.5; 2], size: range.size() });
        let path = State {
            shards: shards.collect(),
            exponents: vec![-12; layout.tensors().len()],
            parameters: vector(0.25),
            first: vector(0.5),
            second: vector(1.0),
        };
        let aggregate = |scale: f32| {
            let mut update = Update::empty(&layout, layout.all_shards(2));
            let mut place = 0;
            for block in layout.all_shards(2).flat_map(|shard| layout.blocks_of(shard)) {
                let length = layout.block(block).unwrap().range.len();
                let values: Vec<f32> = (place..place + length).map(|place| place as f32 * scale).collect();
                update.put(&layout, block, &values).unwrap();
                place += length;
            }
            update
        };
        let aggregates = [(EARLIER, aggregate(0.5)), (ROUND, aggregate(-0.125))];
        let state = path.branched([Row(0), Row(1)]);
        Self { manifest, layout, state, aggregates }
    }

    fn seal(&self, height: u64, body: Body) -> Signed<Record> {
        let record = Record { height: Height(height), previous: Digest([9; 32]), body };
        steward().sign(self.manifest.run(), &record)
    }

    /// What seals the results of a round, and these steps and roots.
    fn round(&self, round: Round, steps: Vec<RowStep>, state: StateRoots) -> SealedRound {
        let open: RowSet = [Row(0), Row(1)].into_iter().collect();
        let commit = Commit {
            round,
            head: Digest([8; 32]),
            state: self.state.root(),
            slot: Slot(0),
            seats: 1,
            route: Some(Route { row: Row(0), open }),
            leaves: 1,
            profile: self.manifest.profile,
            loss: 0,
            root: Digest([7; 32]),
        };
        let commits = List::new(vec![id(11).sign(self.manifest.run(), &commit)]).unwrap();
        let freeze = Freeze { round, state: self.state.root(), commits };
        let freeze = self.seal(10 * u64::from(round.0), Body::Freeze(freeze));
        let head = freeze.verify(self.manifest.run()).unwrap().head();
        let update = &self.aggregates.iter().find(|(of, _)| *of == round).unwrap().1;
        let plans = parts_in(&self.layout, 1, &self.layout.all_shards(2).collect::<Vec<_>>(), PARTS).unwrap();
        let result = |(part, (_, blocks)): (usize, (ShardId, Vec<Block>))| {
            let values = blocks.iter().map(|block| update.block(&self.layout, *block).unwrap());
            let digest = values.fold(PartDigest::default(), |digest, values| digest.block(&values)).finish();
            let (part, inputs) = (Part(part as u16), Bitmap::default());
            let result = PartResult { round, part, attempt: 0, freeze: head, inputs, digest };
            Some(id(11).sign(self.manifest.run(), &result))
        };
        let outcome = Outcome {
            round,
            results: List::new(plans.into_iter().enumerate().map(result).collect()).unwrap(),
            echoes: List::default(),
            state,
            seats: List::default(),
            credits: List::default(),
            seconds: List::default(),
            steps: List::new(steps).unwrap(),
        };
        SealedRound { freeze, outcome: self.seal(10 * u64::from(round.0) + 3, Body::Outcome(outcome)) }
    }

    /// The roots after the round, where row 1 takes the results of a round, or no step.
    fn after(&self, source: Option<Round>) -> StateRoots {
        let mut row = self.state.select([ROW]);
        if let Some(source) = source {
            let (_, update) = self.aggregates.iter().find(|(of, _)| *of == source).unwrap();
            AddsToShards.apply(&self.manifest, &mut row, update);
        }
        self.state.roots().with(&row)
    }

    fn judge(&mut self, sealed: SealedRound, earlier: Option<SealedRound>) -> Judgement {
        let SealedRound { freeze, outcome } = sealed;
        let wrong = WrongRoot { freeze, outcome, before: self.state.roots(), shard: ROW, earlier };
        let (manifest, evidence) = (self.manifest.clone(), Evidence::Misconduct(Misconduct::Root(wrong)));
        judge(&manifest, &evidence, self, &mut AddsToShards)
    }
}

#[test]
fn audit_13_a_row_takes_the_results_of_the_round_that_the_outcome_names() {
    let mut scene = Rows::new();
    let step = |round| RowStep { row: Row(1), round };
    let earlier = |scene: &Rows| Some(scene.round(EARLIER, Vec::new(), scene.state.roots()));
    for (steps, source) in
        [(vec![step(EARLIER)], Some(EARLIER)), (vec![step(ROUND)], Some(ROUND)), (vec![], None)]
    {
        let shown = if source == Some(EARLIER) { earlier(&scene) } else { None };
        for given in [None, Some(EARLIER), Some(ROUND)] {
            let sealed = scene.round(ROUND, steps.clone(), scene.after(given));
            let judgement = scene.judge(sealed, shown.clone());
            match judgement {
                Judgement::NotGuilty(_) => assert_eq!(given, source),
                Judgement::Guilty { round: ROUND, .. } => assert_ne!(given, source),
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn audit_13_what_sealed_the_results_is_shown_and_nothing_else() {
    let mut scene = Rows::new();
    let step = |round| RowStep { row: Row(1), round };
    let state = scene.after(None);
    let late = scene.round(ROUND, vec![step(EARLIER)], state.clone());
    let own = scene.round(ROUND, vec![step(ROUND)], state.clone());
    let none = scene.round(ROUND, Vec::new(), state.clone());
    let earlier = scene.round(EARLIER, Vec::new(), state.clone());
    let swapped = SealedRound { freeze: earlier.freeze.clone(), outcome: own.outcome.clone() };
    let strange = |signed: &Signed<Record>| {
        id(11).sign(scene.manifest.run(), &signed.verify(scene.manifest.run()).unwrap().into_inner())
    };
    let unsigned = SealedRound { outcome: strange(&earlier.outcome), ..earlier.clone() };
    let cases = [
        (late.clone(), None),
        (late.clone(), Some(own.clone())),
        (late.clone(), Some(swapped)),
        (late, Some(unsigned)),
        (own.clone(), Some(earlier.clone())),
        (own.clone(), Some(own)),
        (none, Some(earlier)),
    ];
    for (number, (sealed, earlier)) in cases.into_iter().enumerate() {
        let judgement = scene.judge(sealed, earlier);
        assert!(matches!(judgement, Judgement::Malformed(_)), "{number}: {judgement:?}");
    }
}
