//! The table: where the steward is, and who holds a row.

use std::time::Duration;

use libp2p::futures::StreamExt;
use libp2p::kad::store::MemoryStore;
use libp2p::kad::{self, GetRecordOk, QueryId, QueryResult, Quorum, Record, RecordKey};
use libp2p::multiaddr::Protocol;
use libp2p::swarm::SwarmEvent;
use libp2p::{Multiaddr, PeerId, StreamProtocol, Swarm, SwarmBuilder, noise, tcp, yamux};
use muster_core::codec::{List, Text, encode};
use muster_core::ids::{MemberId, Row};
use muster_core::messages::gossip::Whereabouts;
use muster_core::sign::{Identity, Signed};

use super::{Node, PATIENCE, member, node, node_with, run, soon};

fn whereabouts(identity: &Identity, address: &str, time: u64) -> Signed<Whereabouts> {
    let addresses = List::new(vec![Text::new(address).unwrap()]).unwrap();
    identity.sign(run(), &Whereabouts { addresses, time })
}

/// Asks until the answer is that of `time`.
async fn found(node: &Node, whom: &Identity, time: u64) -> String {
    let asking = async {
        loop {
            let answer = node.gossip.find(whom.id(), PATIENCE).await;
            if let Some(answer) = answer.filter(|answer| answer.time == time) {
                return answer.addresses[0].to_string();
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    soon(asking).await
}

/// A peer that puts whatever it likes into one other's table, and reads it.
struct Table {
    swarm: Swarm<kad::Behaviour<MemoryStore>>,
    other: PeerId,
}

impl Table {
    fn of(node: &Node) -> Self {
        let name = StreamProtocol::try_from_owned(format!("/muster/1/kad/{:#}", run())).unwrap();
        let mut swarm = SwarmBuilder::with_new_identity()
            .with_tokio()
            .with_tcp(tcp::Config::default(), noise::Config::new, yamux::Config::default)
            .unwrap()
            .with_behaviour(|key| {
                let peer = key.public().to_peer_id();
                kad::Behaviour::with_config(peer, MemoryStore::new(peer), kad::Config::new(name))
            })
            .unwrap()
            .build();
        let address: Multiaddr = node.own()[0].parse().unwrap();
        let Some(Protocol::P2p(other)) = address.iter().last() else { panic!("{address}") };
        swarm.behaviour_mut().add_address(&other, address);
        Self { swarm, other }
    }

    /// The other's values, once a query is over; it may go on to others.
    async fn answers(&mut self, query: QueryId) -> Vec<Vec<u8>> {
        let mut found = Vec::new();
        let asking = async {
            loop {
                let event = self.swarm.select_next_some().await;
                let SwarmEvent::Behaviour(kad::Event::OutboundQueryProgressed { id, result, step, .. }) =
                    event
                else {
                    continue;
                };
                if let QueryResult::GetRecord(Ok(GetRecordOk::FoundRecord(record))) = result
                    && record.peer == Some(self.other)
                {
                    found.push(record.record.value);
                }
                if id == query && step.last {
                    return;
                }
            }
        };
        soon(asking).await;
        found
    }

    async fn put(&mut self, key: &[u8], value: Vec<u8>) {
        let record = Record { key: RecordKey::new(&key), value, publisher: None, expires: None };
        let query = self.swarm.behaviour_mut().put_record_to(record, [self.other].into_iter(), Quorum::One);
        self.answers(query).await;
    }

    async fn holds(&mut self, key: &[u8]) -> bool {
        let query = self.swarm.behaviour_mut().get_record(RecordKey::new(&key));
        !self.answers(query).await.is_empty()
    }
}

fn key(member: &Identity) -> Vec<u8> {
    [run().0.0, member.id().0].concat()
}

/// Asks until those who say that they hold a row are these.
async fn held(node: &Node, row: u16, by: &[u8]) {
    let mut wanted: Vec<MemberId> = by.iter().map(|secret| member(*secret).id()).collect();
    wanted.sort();
    let asking = async {
        while node.gossip.holders(Row(row), PATIENCE).await != wanted {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    soon(asking).await;
}

/// STATE-13: members that say they hold a row are found under it, as long as they say so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_holds_a_row_is_found_by_its_row() {
    let hub = node(2, &[]).await;
    let (one, moving) = (node(1, &hub.own()).await, node(4, &hub.own()).await);
    let asking = node(3, &hub.own()).await;
    assert!(one.gossip.hold(Some(Row(3))) && moving.gossip.hold(Some(Row(3))));
    held(&asking, 3, &[1, 4]).await;
    held(&asking, 4, &[]).await;
    assert!(moving.gossip.hold(Some(Row(5))));
    held(&asking, 5, &[4]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_steward_that_moved_is_found() {
    let steward = member(1);
    let at_first = node(1, &[]).await;
    let hub = node(2, &at_first.own()).await;
    let asking = node(3, &hub.own()).await;
    assert!(asking.gossip.find(member(7).id(), Duration::from_millis(200)).await.is_none());
    assert!(at_first.gossip.announce(&whereabouts(&steward, "old.example:1", 10)));
    assert_eq!(found(&asking, &steward, 10).await, "old.example:1");
    let mut table = Table::of(&hub);
    while !soon(table.holds(&key(&steward))).await {}
    at_first.gossip.stop().await;
    // Others still know, and take the later statement when it comes from elsewhere.
    assert_eq!(found(&asking, &steward, 10).await, "old.example:1");
    let moved = node(1, &hub.own()).await;
    assert!(moved.gossip.announce(&whereabouts(&steward, "new.example:2", 11)));
    assert_eq!(found(&asking, &steward, 11).await, "new.example:2");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_table_keeps_what_is_true_and_newest() {
    let (known, stranger) = (member(1), member(77));
    let hub = node_with(2, &[], vec![known.id()]).await;
    let mut table = Table::of(&hub);
    let entry = |identity: &Identity, address: &str, time| encode(&whereabouts(identity, address, time));
    let lies = [
        (key(&stranger), entry(&stranger, "stranger.example:1", 1)),
        (key(&known), entry(&stranger, "stranger.example:1", 1)),
        (key(&known), b"garbage".to_vec()),
        (b"short".to_vec(), entry(&known, "known.example:1", 1)),
        ([[1; 32], known.id().0].concat(), entry(&known, "known.example:1", 1)),
    ];
    for (key, lie) in lies {
        table.put(&key, lie).await;
        assert!(!table.holds(&key).await);
    }
    table.put(&key(&known), entry(&known, "known.example:2", 2)).await;
    assert!(table.holds(&key(&known)).await);
    let asking = node(3, &hub.own()).await;
    assert_eq!(found(&asking, &known, 2).await, "known.example:2");
    // An earlier statement does not come back, whoever puts it in.
    table.put(&key(&known), entry(&known, "known.example:1", 1)).await;
    assert_eq!(found(&asking, &known, 2).await, "known.example:2");
    table.put(&key(&known), entry(&known, "known.example:3", 3)).await;
    assert_eq!(found(&asking, &known, 3).await, "known.example:3");
}
