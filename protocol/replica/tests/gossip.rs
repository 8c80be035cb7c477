//! Members that listen to each other: a steward with two ledgers and a member with two commitments are found out.
#![allow(clippy::unwrap_used)]

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use muster_core::codec::{List, Text};
use muster_core::ids::{Digest, Height, MemberId, Round};
use muster_core::ledger::Ledger;
use muster_core::ledger::fixture::{Makers, Newcomer, commitment};
use muster_core::manifest::Manifest;
use muster_core::messages::evidence::Evidence;
use muster_core::messages::record::{Body, Freeze, Record};
use muster_core::messages::round::Commit;
use muster_core::sign::{Identity, Signed, Verified};
use muster_core::state::{ShardRoots, StateRoots};
use muster_net::swarm::Settings;
use muster_replica::{Gossiping, Misbehaviour, find_member};
use tokio::sync::mpsc;
use tokio::time::timeout;

const PATIENCE: Duration = Duration::from_secs(60);

fn identity(secret: u8) -> Identity {
    Identity::from_secret(&[secret; 32])
}

fn makers() -> Makers {
    Makers::of(100, 101)
}

fn steward() -> Identity {
    makers().steward
}

/// A run of two nodes.
fn manifest() -> Manifest {
    let mut manifest = makers().tiny(2, 2);
    manifest.audit.final_rounds = 1;
    manifest
}

fn roots(what: u8) -> StateRoots {
    StateRoots::from([ShardRoots {
        step: 0,
        beta_powers: [0; 2],
        exponents: Digest([what; 32]),
        parameters: Digest([what; 32]),
        first: Digest([what; 32]),
        second: Digest([what; 32]),
    }])
}

/// A member's ledger.
struct Chain(Ledger);

impl Chain {
    fn new() -> Self {
        Self(Ledger::new(Arc::new(manifest())))
    }

    fn seal(&mut self, body: Body) -> (Signed<Record>, Verified<Record>) {
        makers().seal(&mut self.0, body)
    }

    /// Both nodes are seated in round 0.
    fn begun() -> Self {
        let nodes = [1, 2].map(identity);
        Self(makers().begin(manifest(), nodes.iter().map(Newcomer::node)))
    }

    fn commit(&self, secret: u8, what: u8) -> Signed<Commit> {
        let member = identity(secret);
        member.sign(self.0.run(), &commitment(&self.0, &member, 0, Digest([what; 32])))
    }
}

type Heard = mpsc::Receiver<Misbehaviour>;

/// A swarm of members with these ledgers, the first of them the steward's.
async fn swarm<const N: usize>(members: [(&Identity, &Chain); N]) -> Vec<(Gossiping, Heard)> {
    let mut nodes: Vec<(Gossiping, Heard)> = Vec::new();
    let mut bootstrap = Vec::new();
    for (identity, chain) in members {
        let settings = Settings {
            listen: vec!["127.0.0.1:0".into()],
            bootstrap: bootstrap.clone(),
            ..Settings::default()
        };
        let node = Gossiping::start(identity, &chain.0, &settings, None).unwrap();
        bootstrap.extend(node.0.own(PATIENCE).await);
        assert_eq!(bootstrap.len(), nodes.len() + 1);
        nodes.push(node);
    }
    // What is said before is missed by those who do not listen yet.
    for (gossip, _) in &nodes {
        soon(gossip.neighbourhood().wait_for(|known| known.listening == N - 1)).await.unwrap();
    }
    nodes
}

async fn soon<T>(waited: impl Future<Output = T>) -> T {
    timeout(PATIENCE, waited).await.expect("it takes too long")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_steward_that_shows_two_ledgers_is_found_out_by_both_sides() {
    let (mut ours, mut theirs) = (Chain::new(), Chain::new());
    let members = [(&steward(), &ours), (&identity(1), &ours), (&identity(2), &theirs)];
    let mut nodes = swarm(members).await;
    let (signed, record) = ours.seal(Body::Open(roots(1)));
    let (other_signed, other) = theirs.seal(Body::Open(roots(2)));
    let found = nodes[1].0.sealed(&ours.0, &signed, &record, Height(0));
    assert!(found.is_empty());
    let found = nodes[2].0.sealed(&theirs.0, &other_signed, &other, Height(0));
    for (node, mut found) in [(1, Vec::new()), (2, found)] {
        if found.is_empty() {
            found.extend(soon(nodes[node].1.recv()).await);
        }
        let [Misbehaviour::SplitView(split)] = found[..] else { panic!("{found:?}") };
        assert_eq!(split.height, Height(0));
        let mut heads = [split.known, split.other];
        heads.sort();
        let mut sealed = [record.head(), other.head()];
        sealed.sort();
        assert_eq!(heads, sealed);
        assert!(split.to_string().contains("height 0"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_record_is_announced_by_its_head() {
    let (chain, mut fork) = (Chain::begun(), Chain::begun());
    let mut nodes = swarm([(&steward(), &chain), (&identity(1), &fork)]).await;
    let commits = List::new(vec![chain.commit(1, 1); 200]).unwrap();
    let freeze = Freeze { round: Round(0), state: chain.0.state().root(), commits };
    let long = chain.0.record(Body::Freeze(freeze));
    nodes[0].0.seal(&steward(), &chain.0, &steward().sign(chain.0.run(), &long), &long);
    let commits = List::new(vec![fork.commit(1, 1), fork.commit(2, 1)]).unwrap();
    let (signed, short) =
        fork.seal(Body::Freeze(Freeze { round: Round(0), state: fork.0.state().root(), commits }));
    let (gossip, heard) = &mut nodes[1];
    let found = match gossip.sealed(&fork.0, &signed, &short, short.height).pop() {
        Some(found) => Some(found),
        None => soon(heard.recv()).await,
    };
    let Some(Misbehaviour::SplitView(split)) = found else { panic!("no split view") };
    assert!([split.known, split.other].contains(&long.head()) && split.height == long.height);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_commits_twice_is_found_out() {
    let chain = Chain::begun();
    let mut nodes = swarm([(&steward(), &chain), (&identity(1), &chain), (&identity(2), &chain)]).await;
    let (first, second) = (chain.commit(1, 1), chain.commit(1, 2));
    nodes[1].0.committed(&first);
    nodes[1].0.committed(&second);
    for node in [0, 2] {
        let Some(Misbehaviour::Equivocation(evidence)) = soon(nodes[node].1.recv()).await else {
            panic!("no evidence")
        };
        let Evidence::Equivocation(pair) = evidence else { panic!("{evidence:?}") };
        let mut told = [pair.first, pair.second].map(|signed| signed.verify(chain.0.run()).unwrap().root);
        told.sort();
        assert_eq!(told, [Digest([1; 32]), Digest([2; 32])]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_newcomer_finds_the_steward_through_peers_of_another_time() {
    let chain = Chain::begun();
    let nodes = swarm([(&steward(), &chain), (&identity(1), &chain)]).await;
    let addresses = List::new(vec![Text::new("moved.example:7").unwrap()]).unwrap();
    nodes[0].0.announce(&steward(), addresses);
    let peers = nodes[1].0.own(PATIENCE).await;
    let whom: MemberId = steward().id();
    let found = find_member(&identity(50), chain.0.run(), whom, peers, PATIENCE).await;
    assert_eq!(found, Some(vec!["moved.example:7".to_owned()]));
    let nobody =
        find_member(&identity(50), chain.0.run(), whom, Vec::new(), Duration::from_millis(100)).await;
    assert_eq!(nobody, None);
}
