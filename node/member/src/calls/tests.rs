use std::path::Path;

use muster_compute::Exact;
use muster_core::codec::List;
use muster_core::ids::{Digest, Row};
use muster_core::manifest::{Data, Manifest, Start, Tokeniser};
use muster_core::messages::call::{fixed, logits_digest};
use muster_core::messages::record::Body;
use muster_core::sign::Identity;
use muster_core::state::{Arithmetic, State};
use muster_organise::config::{Makers, Settings};

use super::*;
use crate::conduct::{AskedCall, HonestNode, NodeConduct};

const TINY: &str =
    "[model]\nwidth = 16\nlayers = 1\nheads = 2\nkey_value_heads = 1\nhidden = 24\nsequence = 16\n";

fn id(secret: u8) -> Identity {
    Identity::from_secret(&[secret; 32])
}

fn manifest() -> Manifest {
    let (root, held_out_root) = (Digest::default(), Digest::default());
    let (tokeniser, start) = (Tokeniser::Bytes, Start::Drawn);
    let data = Data { root, bytes: 4096, held_out_root, held_out_bytes: 0, tokeniser, start, router: None };
    let makers = Makers { organiser: id(1).id(), steward: id(2).id(), nonce: [0; 16] };
    Settings::parse(Path::new("run.toml"), TINY).unwrap().manifest(&makers, data).unwrap()
}

/// A holder that keeps one state, or none.
struct Kept(Option<Arc<State>>);

impl States for Kept {
    fn at(&self, root: &Digest, _: Row) -> Option<Arc<State>> {
        self.0.clone().filter(|state| state.root() == *root)
    }

    fn oldest(&self) -> Option<Arc<State>> {
        self.0.clone()
    }
}

/// A run before its first round, and a holder in it.
struct Scene {
    ledger: Ledger,
    state: Arc<State>,
    calls: Calls,
}

impl Scene {
    fn new(conduct: impl NodeConduct, keeps: bool) -> Self {
        let manifest = Arc::new(manifest());
        let mut state = Exact::new(1, None).unwrap().initial(&manifest, &[vec![0; 17]]);
        // Not what the text gives: here only the root counts.
        state.exponents.fill(0);
        let mut ledger = Ledger::new(manifest.clone());
        let open = ledger.record(Body::Open(state.roots()));
        ledger.apply(&id(2).sign(manifest.run(), &open)).unwrap();
        let state = Arc::new(state);
        let holder = Holder {
            identity: Arc::new(id(7)),
            conduct: Arc::new(conduct),
            manifest,
            states: Arc::new(Kept(keeps.then(|| state.clone()))),
            path: None,
        };
        Self { ledger, state, calls: Calls::new(holder) }
    }

    fn ask(&self) -> Ask {
        let tokens = List::new(vec![102, 110, 32]).unwrap();
        Ask { round: Round(0), root: self.state.root(), row: Row(0), tokens, positions: 2 }
    }

    /// What the holder says to an asker's question that somebody brings.
    async fn call(&self, asker: u8, bringer: u8, ask: &Ask) -> Result<Response, Unanswered> {
        let signed = id(asker).sign(self.ledger.run(), ask);
        self.calls.answer(id(bringer).id(), &self.ledger, &signed).await
    }

    async fn refused(&self, asker: u8, bringer: u8, ask: &Ask) -> String {
        match self.call(asker, bringer, ask).await {
            Err(Unanswered::Refused(why)) => why,
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn call_8_a_stranger_is_answered_by_what_the_model_gives() {
    let scene = Scene::new(HonestNode, true);
    let ask = scene.ask();
    for _ in 0..2 {
        let Ok(Response::Answer(answered)) = scene.call(30, 30, &ask).await else { panic!("an answer") };
        let run = scene.ledger.run();
        let answer = answered.answer.verify(run).unwrap();
        assert_eq!((answer.author(), answer.ask), (id(7).id(), id(30).sign(run, &ask).digest()));
        let mut exact = Exact::new(1, None).unwrap();
        let true_ones = exact.logits(scene.ledger.manifest(), &scene.state, &ask.tokens, 2).unwrap();
        let true_ones: Vec<i32> = true_ones.into_iter().map(fixed).collect();
        assert_eq!(*answered.logits, *true_ones);
        assert_eq!(answer.logits, logits_digest(&true_ones));
    }
}

#[tokio::test]
async fn call_8_what_is_not_to_be_answered_is_refused_in_words() {
    let scene = Scene::new(HonestNode, true);
    let ask = scene.ask();
    assert!(scene.refused(30, 31, &ask).await.contains("by whoever has signed it"));
    let other_root = Ask { root: Digest([9; 32]), ..ask.clone() };
    let other_round = Ask { round: Round(1), ..ask.clone() };
    for ask in [other_root, other_round] {
        assert!(scene.refused(30, 30, &ask).await.contains("not the state before that round"));
    }
    assert!(scene.refused(30, 30, &Ask { row: Row(1), ..ask.clone() }).await.contains("a row of the model"));
    let without = Scene::new(HonestNode, false);
    assert!(without.refused(30, 30, &ask).await.contains("not held here"));
}

#[tokio::test]
async fn call_8_strangers_wait_a_second_for_each_other_and_not_for_members() {
    let scene = Scene::new(HonestNode, true);
    let [of_members, of_strangers] = &scene.calls.turns;
    let turn = of_strangers.clone().acquire_owned().await.unwrap();
    assert!(scene.refused(30, 30, &scene.ask()).await.contains("busy"));
    drop(turn);
    let _turn = of_members.clone().acquire_owned().await.unwrap();
    assert!(scene.call(30, 30, &scene.ask()).await.is_ok());
}

#[tokio::test]
async fn call_8_strangers_have_one_quota_together() {
    let scene = Scene::new(HonestNode, true);
    lock(&scene.calls.quotas).spent.insert(None, limits::CALLS - 1);
    assert!(scene.call(30, 30, &scene.ask()).await.is_ok());
    // Another key is another name, and no other quota.
    assert!(scene.refused(31, 31, &scene.ask()).await.contains("no more calls"));
}

#[test]
fn call_8_a_member_has_a_quota_of_its_own_anew_each_round() {
    let mut quotas = Quotas::default();
    let member = Some(id(30).id());
    assert!((0..limits::CALLS).all(|_| quotas.spend(Round(4), member)));
    assert!(!quotas.spend(Round(4), member));
    assert!(quotas.spend(Round(4), Some(id(31).id())) && quotas.spend(Round(4), None));
    assert!(quotas.spend(Round(5), member));
    assert_eq!(quotas.spent.len(), 1, "what is over is forgotten");
}

/// Says nothing.
struct Mute;

impl NodeConduct for Mute {
    fn answer(&self, _: &AskedCall<'_>, _: Vec<i32>) -> Option<Vec<i32>> {
        None
    }
}

#[tokio::test]
async fn a_holder_that_says_nothing_holds_no_turn() {
    let scene = Scene::new(Mute, true);
    let ask = scene.ask();
    let silent = tokio::time::timeout(Duration::from_millis(300), scene.call(30, 30, &ask)).await;
    assert!(silent.is_err());
    assert!(scene.calls.turns.iter().all(|turn| turn.available_permits() == 1));
}
