//! States that are kept for others, and what is sent of them.
#![allow(clippy::unwrap_used)] // the helpers, too, are tests

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use muster_core::ids::{MemberId, Round, ShardId};
use muster_core::manifest::fixture::tiny;
use muster_core::messages::offer::{StateOffer, StateQuery, StateVector};
use muster_core::state::Update;
use muster_net::serve::Unanswered;
use muster_replica::memory::Room;
use muster_replica::{Asker, Offers, Replica};
use muster_store::dataset::{Dataset, SourceText, pack};
use muster_store::home::Home;

const VECTORS: [StateVector; 4] =
    [StateVector::Exponents, StateVector::Parameters, StateVector::First, StateVector::Second];

/// A member that trains, in a folder of this process that is removed in the end.
struct Member {
    folder: PathBuf,
    replica: Arc<Mutex<Replica>>,
    offers: Offers,
}

impl Member {
    fn new(name: &str) -> Self {
        Self::with(name, None)
    }

    /// With so much room in memory for states, if that is bounded.
    fn with(name: &str, room: Option<Room>) -> Self {
        let folder = std::env::temp_dir().join(format!("muster-offers-{name}-{}", std::process::id()));
        let mut manifest = tiny(MemberId([1; 32]), MemberId([2; 32]), 8, 2);
        let text = || Ok(SourceText { name: "text".into(), bytes: b"to be or not to be ".repeat(64) });
        let corpus = folder.join("corpus");
        manifest.data = pack([text()], [text()], &corpus, &mut |_| ()).unwrap();
        let dataset = Arc::new(Dataset::open(&corpus, &manifest.data).unwrap());
        let mut replica = Replica::genesis(Arc::new(manifest), dataset, 1, None).unwrap();
        let home = Home::open(&folder.join("home")).unwrap();
        let files = home.row_files().unwrap();
        if let Some(room) = room {
            replica = replica.with_state_files(files.clone(), room);
        }
        let replica = Arc::new(Mutex::new(replica));
        let offers = Offers::new(files, replica.clone());
        Self { folder, replica, offers }
    }

    /// Trains up to this round, and keeps for others what it comes by.
    fn train(&self, round: u32) {
        loop {
            self.offers.keep().unwrap();
            let mut replica = self.replica.lock().unwrap();
            if replica.round() >= Round(round) {
                return;
            }
            let values = vec![0.5; replica.layout().parameters()];
            let update = Update::whole(&replica.layout().clone(), values);
            replica.apply([Ok(&update)], None).unwrap();
        }
    }

    /// Whether all pieces of this state are sent, each of them good.
    fn sends(&self, asker: Asker, offer: &StateOffer) -> Result<(), Unanswered> {
        let size = self.replica.lock().unwrap().layout().shards()[0].size();
        for vector in VECTORS {
            for first in 0..vector.runs(size) as u64 {
                let query = query(offer, vector, first);
                let piece = self.offers.piece(asker, &query)?;
                piece.check(&query, &offer.roots.shards[0], size).unwrap();
            }
        }
        Ok(())
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn query(offer: &StateOffer, vector: StateVector, first: u64) -> StateQuery {
    let (round, root) = (offer.round, offer.roots.root());
    StateQuery { round, root, shard: ShardId(0), vector, first, count: 1 }
}

fn refused(why: &str) -> Unanswered {
    Unanswered::Refused(why.into())
}

#[test]
fn state_10_the_last_two_states_are_kept_for_others_and_nothing_else() {
    let member = Member::new("kept");
    member.train(2);
    assert_eq!(member.offers.newest(), None);
    member.train(3);
    let first = member.offers.newest().unwrap();
    assert_eq!((first.round, &first.roots), (Round(3), member.replica.lock().unwrap().roots()));
    member.train(8);
    assert_eq!(member.offers.newest().unwrap().round, Round(6));
    member.train(9);
    let newest = member.offers.newest().unwrap();
    member.sends(Asker::Anybody, &newest).unwrap();
    assert_eq!(member.sends(Asker::Anybody, &first), Err(refused("this state is not kept here")));
    // Parameters and moments of two states; those of the third wait to be written over.
    let files = std::fs::read_dir(member.folder.join("home/rows")).unwrap().count();
    assert_eq!(files, 6);
    // Another root, another shard, a run that there is not.
    let other = StateOffer { round: newest.round, roots: first.roots };
    assert_eq!(member.sends(Asker::Anybody, &other), Err(refused("this state is not kept here")));
    let asked = query(&newest, StateVector::Exponents, 0);
    let absent = StateQuery { shard: ShardId(1), ..asked.clone() };
    let piece = |query: &StateQuery| member.offers.piece(Asker::Anybody, query).unwrap_err();
    assert_eq!(piece(&absent), refused("this shard of the state is not kept here"));
    for (first, count) in [(1, 1), (0, 2), (0, 0), (u64::MAX, u32::MAX)] {
        assert_eq!(
            piece(&StateQuery { first, count, ..asked.clone() }),
            refused("no such piece of the state")
        );
    }
}

#[test]
fn state_10_an_earlier_state_is_kept_while_somebody_fetches_it() {
    let member = Member::new("fetched");
    let kept_at = |round, fetcher: Option<Asker>| {
        member.train(round);
        let offer = member.offers.newest().unwrap();
        let first = query(&offer, StateVector::Exponents, 0);
        fetcher.map(|asker| member.offers.piece(asker, &first).unwrap());
        offer
    };
    let stranger = Some(Asker::Stranger);
    let fetchers = [(3, stranger), (6, Some(Asker::Member(MemberId([5; 32])))), (9, None), (12, stranger)];
    let offers = fetchers.map(|(round, fetcher)| kept_at(round, fetcher));
    let kept = || offers.iter().map(|offer| member.sends(Asker::Anybody, offer).is_ok()).collect::<Vec<_>>();
    assert_eq!(kept(), [false, true, true, true], "a stranger's gives way to a member's");
    member.train(15);
    assert_eq!(kept(), [false, false, true, true], "8 rounds are remembered");
    member.train(18);
    assert_eq!(kept(), [false, false, false, true]);
}

#[test]
fn state_10_of_a_state_that_is_on_the_disk_anyway_no_copy_is_written() {
    let member = Member::with("away", Some(Room { state: 0, past: 0 }));
    let files = |of: &str| std::fs::read_dir(member.folder.join("home").join(of)).unwrap().count();
    member.train(8);
    let offer = member.offers.newest().unwrap();
    // The state has moved on, and its files are still there.
    assert_eq!(offer.round, Round(6));
    member.sends(Asker::Anybody, &offer).unwrap();
    member.train(9);
    member.sends(Asker::Anybody, &offer).unwrap();
    member.sends(Asker::Anybody, &member.offers.newest().unwrap()).unwrap();
    let held = files("rows");
    member.offers.clear();
    assert!(files("states") == 0 && files("rows") < held, "those of the older one are gone");
}

#[test]
fn a_state_from_before_a_rewind_is_not_offered() {
    let member = Member::new("rewind");
    member.train(3);
    let back = Member::new("back");
    back.train(1);
    let held = back.replica.lock().unwrap().held_state().clone();
    member.replica.lock().unwrap().replace(held, Round(4)).unwrap();
    assert_eq!(member.offers.newest(), None);
    member.offers.keep_now().unwrap();
    assert_eq!(member.offers.newest().unwrap().round, Round(4));
}

#[test]
fn state_12_nobody_has_a_state_sent_without_end() {
    let member = Member::new("bounds");
    member.train(3);
    let offer = member.offers.newest().unwrap();
    let enough = Err(refused("enough of this state was sent; ask another holder"));
    let [one, other] = [1, 2].map(|name| Asker::Member(MemberId([name; 32])));
    let fetch = |asker| member.sends(asker, &offer);
    assert_eq!((fetch(one), fetch(one), fetch(one)), (Ok(()), Ok(()), enough.clone()));
    // Others have their own share; all strangers together have one.
    assert_eq!(fetch(other), Ok(()));
    assert!((0..16).all(|_| fetch(Asker::Stranger).is_ok()));
    assert_eq!(fetch(Asker::Stranger), enough);
    assert!((0..20).all(|_| fetch(Asker::Anybody).is_ok()));
    member.train(6);
    assert_eq!(member.sends(one, &member.offers.newest().unwrap()), Ok(()));
}

#[test]
fn a_disk_that_has_changed_a_bit_makes_no_liar_of_its_member() {
    let member = Member::new("damaged");
    member.train(3);
    for file in std::fs::read_dir(member.folder.join("home/rows")).unwrap() {
        let path = file.unwrap().path();
        let mut bytes = std::fs::read(&path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        std::fs::write(&path, bytes).unwrap();
    }
    let offer = member.offers.newest().unwrap();
    assert_eq!(member.sends(Asker::Anybody, &offer), Err(refused("this state is damaged here")));
}
