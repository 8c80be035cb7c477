//! The inputs of a part over real sockets: an aggregator that keeps them back, or hands out others, hides nothing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use muster_core::codec::{Bytes, List, Text, decode, encode};
use muster_core::contribution::{Commitment, PartDigest, block_integers};
use muster_core::ids::{Block, Digest, MemberId, Part, Round, Slot};
use muster_core::layout::Layout;
use muster_core::ledger::Ledger;
use muster_core::manifest::Profile;
use muster_core::manifest::fixture::tiny;
use muster_core::messages::enrol::{Enrol, Invitation, InvitationSecret, Role};
use muster_core::messages::record::{Body, Freeze, Inputs};
use muster_core::messages::round::{Bitmap, Commit, PartResult};
use muster_core::messages::wire::{Request, Response};
use muster_core::rounding::{BlockValues, ResultGrid};
use muster_core::sign::Identity;
use muster_core::state::{ShardRoots, StateRoots};
use muster_net::endpoint::Endpoint;
use muster_net::listener::Listener;
use muster_net::seats::ConnectionLimit;
use muster_net::serve::{Unanswered, serve};
use muster_replica::{Contact, InputSources, PartInputs, Peers, contact};

const NODES: u8 = 3;

fn identity(secret: u8) -> Identity {
    Identity::from_secret(&[secret; 32])
}

/// What a node does when it is asked for blocks.
#[derive(Clone, Copy, PartialEq)]
enum Conduct {
    /// Hands out its own, and what it keeps of others.
    Serves,
    /// Says that it holds nothing.
    Refuses,
    /// Hands out zeros.
    Lies,
    /// Takes questions, and never answers.
    Stalls,
}

fn contribution(layout: &Layout, number: u8) -> Vec<i32> {
    (0..layout.parameters()).map(|c| ((c * 31 + usize::from(number) * 7) % 90) as i32 - 45).collect()
}

/// Serves blocks of every contribution; gives the address.
async fn server(ledger: &Ledger, secret: u8, conduct: Conduct) -> String {
    let (run, layout) = (ledger.run(), ledger.layout().clone());
    let endpoint = Endpoint::new(run, Arc::new(identity(secret)));
    let listener = Listener::bind("127.0.0.1:0", ConnectionLimit::default()).await.expect("a port");
    let address = listener.local_addr().to_string();
    let handler = move |_: MemberId, request: Vec<u8>| {
        let layout = layout.clone();
        async move {
            if conduct == Conduct::Stalls {
                std::future::pending::<()>().await;
            }
            let query = match decode(&request) {
                Ok(Request::InputBlocks(query)) => query,
                Ok(Request::ResultBlocks(query)) => {
                    let mut values = values(&layout, &query.blocks);
                    if conduct == Conduct::Lies {
                        values[0][0] += 16.0;
                    }
                    let packed = query.blocks.iter().zip(&values).map(|(block, values)| {
                        ResultGrid::of(&layout, *block).pack(values).expect("multiples")
                    });
                    let bytes = packed.flatten().collect();
                    return Ok(encode(&Response::Bytes(Bytes::new(bytes).expect("few"))));
                }
                _ => return Err(Unanswered::Refused("no".into())),
            };
            if conduct == Conduct::Refuses {
                return Err(Unanswered::Refused("this block is not held here".into()));
            }
            let number = (0..NODES).find(|number| identity(10 + number).id() == query.member);
            let mut q = contribution(&layout, number.expect("a node"));
            if conduct == Conduct::Lies {
                q.fill(0);
            }
            let tree = Commitment::new(&layout, &q);
            let blocks = query.blocks.iter().map(|block| tree.block(&layout, &q, *block).expect("a block"));
            Ok(encode(&Response::Blocks(List::new(blocks.collect()).expect("few"))))
        }
    };
    tokio::spawn(serve(listener, endpoint, Arc::new(handler), std::future::pending()));
    address
}

/// Values that a part might have.
fn values(layout: &Layout, blocks: &[Block]) -> Vec<Vec<f32>> {
    let of = |block: &Block| vec![16.0 * block.0 as f32; layout.block(*block).expect("a block").range.len()];
    blocks.iter().map(of).collect()
}

/// Values that came packed.
fn reals(found: &[BlockValues]) -> Vec<Vec<f32>> {
    found.iter().map(|values| values.reals().into_owned()).collect()
}

struct Scene {
    ledger: Ledger,
    steward: Contact,
}

impl Scene {
    /// Everything sealed up to the inputs; nodes behave as told, the steward hands out what it keeps.
    async fn new(conducts: [Conduct; NODES as usize], dialable: bool) -> Self {
        let (organiser, steward) = (identity(1), identity(2));
        let manifest = Arc::new(tiny(organiser.id(), steward.id(), 4, u16::from(NODES)));
        let mut ledger = Ledger::new(manifest.clone());
        let seal = |ledger: &mut Ledger, body| {
            let signed = steward.sign(ledger.run(), &ledger.record(body));
            ledger.apply(&signed).expect("an honest record");
        };
        let digest = Digest([5; 32]);
        let roots = StateRoots::from([ShardRoots {
            step: 0,
            beta_powers: [0; 2],
            exponents: digest,
            parameters: digest,
            first: digest,
            second: digest,
        }]);
        let state = roots.root();
        seal(&mut ledger, Body::Open(roots));
        for (number, conduct) in (0u8..).zip(conducts) {
            let (role, secret) = (Role::Node, InvitationSecret::new([number; 32]));
            let invitation =
                Invitation { role, uses: 1, expires: u64::MAX, key: secret.key(), founder: false };
            let invitation = organiser.sign(ledger.run(), &invitation);
            let invitation = secret.present(ledger.run(), invitation, identity(10 + number).id());
            let address = server(&ledger, 10 + number, conduct).await;
            // Only the last one may be there for nobody to dial.
            let addresses = if dialable || number + 1 < NODES {
                vec![Text::new(address).expect("short")]
            } else {
                vec![]
            };
            let enrol = Enrol {
                invitation: Some(invitation),
                addresses: List::new(addresses).expect("one"),
                coins: None,
                name: Default::default(),
                engagement: Default::default(),
            };
            let signed = identity(10 + number).sign(ledger.run(), &enrol);
            seal(&mut ledger, Body::Admit(signed));
        }
        let seats = List::new(ledger.derived_seats()).expect("few");
        seal(&mut ledger, Body::Begin(seats));
        let commits = List::new((0..NODES).map(|number| commit(&ledger, number)).collect()).expect("few");
        seal(&mut ledger, Body::Freeze(Freeze { round: Round(0), state, commits }));
        let parts = vec![all(); ledger.current().expect("a round").parts().len()];
        seal(
            &mut ledger,
            Body::Inputs(Inputs { round: Round(0), attempt: 0, parts: List::new(parts).expect("few") }),
        );
        let address = server(&ledger, 2, Conduct::Serves).await;
        let steward = Contact { member: identity(2).id(), addresses: vec![address] };
        Self { ledger, steward }
    }

    /// The part of node 0, who is the suspect.
    fn part(&self) -> PartInputs {
        let view = self.ledger.current().expect("a round");
        let plan = view.parts().iter().position(|plan| plan.aggregator == Slot(0)).expect("a part");
        let freeze = view.freeze_digest().expect("a freeze");
        let (round, part, digest) = (Round(0), Part(plan as u16), Digest::default());
        let result = PartResult { round, part, attempt: 0, freeze, inputs: all(), digest };
        PartInputs::of(&self.ledger, &result).expect("a part of the round")
    }

    /// Whether every input is available, and is the committed one.
    async fn fetched(&self, steward: Option<&Contact>, suspected: bool) -> Result<(), String> {
        let (part, layout) = (self.part(), self.ledger.layout());
        let peers = Peers::new(Endpoint::new(self.ledger.run(), Arc::new(identity(99))));
        let sources = InputSources { steward, suspected };
        let found = part.fetch(&peers, layout, &part.blocks, sources, BTreeMap::new()).await?;
        assert_eq!(found.len(), part.blocks.len() * usize::from(NODES));
        for number in 0..NODES {
            let q = contribution(layout, number);
            for block in &part.blocks {
                let integers = block_integers(layout, &found[&(identity(10 + number).id(), *block)]);
                assert_eq!(
                    integers.expect("a block"),
                    q[layout.block(*block).expect("a block").range.clone()]
                );
            }
        }
        Ok(())
    }
}

fn commit(ledger: &Ledger, number: u8) -> muster_core::sign::Signed<Commit> {
    let view = ledger.current().expect("a round");
    let commit = Commit {
        round: Round(0),
        head: view.head(),
        state: view.state().root(),
        slot: Slot(number.into()),
        seats: NODES.into(),
        route: None,
        leaves: 1,
        profile: Profile::Exact,
        loss: 1,
        root: Commitment::new(ledger.layout(), &contribution(ledger.layout(), number)).root(),
    };
    identity(10 + number).sign(ledger.run(), &commit)
}

fn all() -> Bitmap {
    let mut bitmap = Bitmap::default();
    (0..NODES).for_each(|slot| bitmap.insert(Slot(slot.into())));
    bitmap
}

#[tokio::test]
async fn audit_21_a_keeper_that_withholds_or_lies_hides_nothing() {
    for conduct in [Conduct::Refuses, Conduct::Lies] {
        let scene = Scene::new([conduct, Conduct::Serves, Conduct::Serves], true).await;
        for suspected in [true, false] {
            scene
                .fetched(Some(&scene.steward), suspected)
                .await
                .expect("authors and the steward have it all");
        }
        // ROUND-15: of the aggregator's own contribution only the steward has this part.
        let why = scene.fetched(None, true).await.unwrap_err();
        assert!(why.contains(&scene.ledger.members()[0].id.to_string()), "{why}");
    }
}

#[tokio::test]
async fn audit_21_an_input_that_keeper_and_author_keep_back_is_missed_by_name() {
    let scene = Scene::new([Conduct::Refuses, Conduct::Serves, Conduct::Serves], false).await;
    // The steward of this scene has everything; without it nobody answers for who cannot be dialled.
    let why = scene.fetched(None, true).await.unwrap_err();
    assert!(why.contains("unavailable"), "{why}");
    let scene = Scene::new([Conduct::Serves, Conduct::Refuses, Conduct::Lies], true).await;
    scene.fetched(None, true).await.expect("an honest keeper has what authors keep back");
}

/// ROUND-6: whoever reduces a part gets what it lacks from the input's author or the steward; short of one input, it gets
/// none.
#[tokio::test]
async fn round_6_a_reduction_has_all_of_its_inputs_or_none() {
    let scene = Scene::new([Conduct::Refuses, Conduct::Serves, Conduct::Lies], true).await;
    scene.fetched(Some(&scene.steward), false).await.expect("the steward has what they keep back");
    scene.fetched(None, false).await.expect_err("the aggregator's own input is missing");
}

#[tokio::test]
async fn round_7_values_other_than_the_signed_ones_are_not_taken() {
    let scene = Scene::new([Conduct::Lies, Conduct::Serves, Conduct::Serves], true).await;
    let (part, layout) = (scene.part(), scene.ledger.layout());
    let right = values(layout, &part.blocks);
    let digest = right.iter().fold(PartDigest::default(), |digest, block| digest.block(block)).finish();
    let peers = Peers::new(Endpoint::new(scene.ledger.run(), Arc::new(identity(99))));
    let liar = contact(&scene.ledger, &identity(10).id()).expect("a member");
    let of = |holders: Vec<Contact>| {
        let (peers, blocks) = (peers.clone(), part.blocks.clone());
        async move { peers.values(&holders, layout, Round(0), &blocks, &digest).await }
    };
    assert!(of(vec![liar.clone()]).await.is_err());
    let found = of(vec![liar, scene.steward.clone()]).await.expect("the second one has them");
    assert_eq!(reals(&found), right);
}

/// Holders that only delay, at as many addresses as a member may have, hold up nobody who can ask others.
#[tokio::test]
async fn round_7_who_takes_questions_and_answers_none_delays_for_seconds() {
    let scene = Scene::new([Conduct::Stalls, Conduct::Serves, Conduct::Serves], true).await;
    let (part, layout) = (scene.part(), scene.ledger.layout());
    let right = values(layout, &part.blocks);
    let digest = right.iter().fold(PartDigest::default(), |digest, block| digest.block(block)).finish();
    let peers = Peers::new(Endpoint::new(scene.ledger.run(), Arc::new(identity(99))));
    let mut mute = contact(&scene.ledger, &identity(10).id()).expect("a member");
    mute.addresses = vec![mute.addresses[0].clone(); 8];
    let begun = Instant::now();
    let holders = [mute.clone(), mute, scene.steward.clone()];
    let found = peers.values(&holders, layout, Round(0), &part.blocks, &digest).await;
    assert_eq!(reals(&found.expect("the steward has them")), right);
    scene.fetched(Some(&scene.steward), false).await.expect("authors and the steward have it all");
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
}
