use std::sync::Arc;

use super::*;
use crate::audit::{check_steps, claim, judge as judged};
use crate::codec::List;
use crate::contribution::PackedContribution;
use crate::ids::{Block, Digest, MemberId, Row, ShardId};
use crate::ledger::RoundView;
use crate::manifest::Profile;
use crate::manifest::fixture::tiny;
use crate::messages::evidence::Evidence;
use crate::messages::wire::BlockData;
use crate::sign::Identity;
use crate::state::{LeafJob, State, Update};

const ROUND: Round = Round(5);
const HOLDER: u8 = 7;

fn id(secret: u8) -> Identity {
    Identity::from_secret(&[secret; 32])
}

fn manifest() -> Manifest {
    tiny(id(1).id(), id(2).id(), 1, 1)
}

/// Logits that follow from the parameters and the text.
struct Sums;

impl Arithmetic for Sums {
    fn initial(&mut self, _: &Manifest, _: &[Vec<u32>]) -> State {
        unreachable!("a call begins with a state")
    }

    fn leaf(&mut self, _: &Manifest, _: &LeafJob<'_>, _: &mut [i32]) -> i64 {
        unreachable!("no leaf is recomputed")
    }

    fn apply(&mut self, _: &Manifest, _: &mut State, _: &Update) {
        unreachable!("no step is taken")
    }

    fn evaluate(&mut self, _: &Manifest, _: &State, _: &[Vec<u32>]) -> f64 {
        unreachable!("nothing is evaluated")
    }

    fn logits(
        &mut self,
        manifest: &Manifest,
        state: &State,
        tokens: &[u32],
        positions: usize,
    ) -> Option<Vec<f32>> {
        let rows = tokens.len() - positions..tokens.len();
        let row = |end: usize| {
            let sum: u32 = tokens[..=end].iter().sum();
            (0..manifest.model.vocabulary).map(move |kind| sum as f32 + state.parameters[0] * kind as f32)
        };
        Some(rows.flat_map(row).collect())
    }
}

/// A judge that keeps the state before [`ROUND`], or nothing.
struct Keeps(Option<State>);

impl Witness for Keeps {
    fn state(&mut self, root: &Digest, _: &[ShardId]) -> Option<State> {
        self.0.clone().filter(|state| state.root() == *root)
    }

    fn windows(&mut self, _: &[u64]) -> Option<Vec<Vec<u32>>> {
        unreachable!("a call brings its own text")
    }

    fn contribution(&mut self, _: Round, _: &MemberId) -> Option<Arc<PackedContribution>> {
        unreachable!("a call is about no contribution")
    }

    fn round(&mut self, _: Round) -> Option<RoundView> {
        unreachable!("a call names its state")
    }

    fn block(&mut self, _: Round, _: &MemberId, _: Block) -> Option<BlockData> {
        unreachable!("a call is about no contribution")
    }
}

fn state() -> State {
    let layout = Layout::of(&manifest().model);
    State::initial(&layout, vec![0.5; layout.parameters()])
}

fn ask() -> Ask {
    let tokens = List::new(vec![1, 2, 3]).unwrap();
    Ask { round: ROUND, root: state().root(), row: Row(0), tokens, positions: 2 }
}

/// What a holder signs that adds this much to its first logit.
fn answered(ask: &Ask, off: i32) -> FalseAnswer {
    let manifest = manifest();
    let signed = id(30).sign(manifest.run(), ask);
    let logits = Sums.logits(&manifest, &state(), &ask.tokens, ask.positions.into()).unwrap();
    let mut logits: Vec<i32> = logits.into_iter().map(fixed).collect();
    logits[0] += off;
    let answer = Answer { ask: signed.digest(), logits: logits_digest(&logits) };
    FalseAnswer { ask: signed, answer: id(HOLDER).sign(manifest.run(), &answer) }
}

fn verdict(call: FalseAnswer, kept: Option<State>) -> Judgement {
    judged(&manifest(), &Evidence::Answer(call), &mut Keeps(kept), &mut Sums)
}

#[test]
fn call_5_a_false_answer_convicts_its_author_and_a_true_one_nobody() {
    match verdict(answered(&ask(), 1), Some(state())) {
        Judgement::Guilty { culprit, round, finding, .. } => {
            assert_eq!((culprit, finding), (id(HOLDER).id(), FindingKind::FalseAnswer));
            assert_eq!(round, Round(ROUND.0 - 1), "the last one that the state has seen");
        }
        other => panic!("{other:?}"),
    }
    let judgement = verdict(answered(&ask(), 0), Some(state()));
    assert!(matches!(judgement, Judgement::NotGuilty(_)), "{judgement:?}");
}

#[test]
fn call_5_without_the_state_nobody_is_blamed() {
    let forgotten = verdict(answered(&ask(), 1), None);
    assert!(matches!(forgotten, Judgement::Undecided(_)), "{forgotten:?}");
    // A root that was never sealed.
    let invented = Ask { root: Digest([9; 32]), ..ask() };
    let judgement = verdict(answered(&invented, 1), Some(state()));
    assert!(matches!(judgement, Judgement::Undecided(_)), "{judgement:?}");
}

#[test]
fn call_6_an_answer_is_to_one_signed_question() {
    let good = answered(&ask(), 1);
    // The same words of another asker, and other words of the same one.
    let stolen = id(31).sign(manifest().run(), &ask());
    let longer = Ask { positions: 3, ..ask() };
    let reworded = id(30).sign(manifest().run(), &longer);
    for ask in [stolen, reworded] {
        let framed = FalseAnswer { ask, ..good.clone() };
        let judgement = verdict(framed.clone(), Some(state()));
        assert!(matches!(judgement, Judgement::Malformed(_)), "{judgement:?}");
        assert!(claim(&manifest(), &Evidence::Answer(framed.clone())).is_err());
        assert!(check_steps(&manifest(), &Evidence::Answer(framed)).is_err());
    }
    let claimed = claim(&manifest(), &Evidence::Answer(good)).unwrap();
    assert_eq!(claimed.culprit, id(HOLDER).id());
}

#[test]
fn call_6_a_question_that_the_model_cannot_be_asked_convicts_nobody() {
    for bad in [
        Ask { row: Row(1), ..ask() },
        Ask { positions: 0, ..ask() },
        Ask { tokens: List::default(), ..ask() },
    ] {
        let signed = id(30).sign(manifest().run(), &bad);
        let answer = Answer { ask: signed.digest(), logits: Digest::default() };
        let call = FalseAnswer { ask: signed, answer: id(HOLDER).sign(manifest().run(), &answer) };
        let judgement = verdict(call, Some(state()));
        assert!(matches!(judgement, Judgement::Malformed(_)), "{judgement:?}");
    }
    let mut tolerant = manifest();
    tolerant.profile = Profile::F32;
    let signed = id(30).sign(tolerant.run(), &ask());
    let answer = Answer { ask: signed.digest(), logits: Digest::default() };
    let call = FalseAnswer { ask: signed, answer: id(HOLDER).sign(tolerant.run(), &answer) };
    let judgement = judged(&tolerant, &Evidence::Answer(call), &mut Keeps(Some(state())), &mut Sums);
    assert!(matches!(judgement, Judgement::Malformed(_)), "{judgement:?}");
}
