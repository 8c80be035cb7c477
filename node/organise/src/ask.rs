//! Reading with a model that others hold: each token's logits are asked of holders, and drawn calls of two of them.
//!
//! With several rows of experts a text is read with those that suit it best. Who is silent is not waited for. An answer
//! binds its author: where two holders answer one call differently, the false answer is written down as evidence and
//! brought to the steward, which bans its author (CALL-7).

mod holders;
mod proof;
mod rows;

use std::path::{Path, PathBuf};
use std::time::Duration;

use muster_core::codec::List;
use muster_core::ids::{MemberId, Row};
use muster_core::ledger::Ledger;
use muster_core::manifest::Manifest;
use muster_core::messages::call::{Ask, real};
use muster_core::messages::wire::{Follow, Request, Response};
use muster_replica::exit::{Failure, Outcome};
use muster_store::dataset::Routing;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use self::holders::{Answering, Given, Holders, Race};
use self::proof::Court;
use self::rows::{RowAnswer, mixed, newest};
use crate::generate::read_of;
use crate::members::{Way, way};
use crate::ranking::{RankedRow, ranked, router};

/// How long holders may take, and other rows once one has answered, unless somebody says otherwise.
pub const GRACE: Duration = Duration::from_secs(2);
/// One call in so many, as drawn, goes to two holders.
const DOUBLED: u32 = 10;
/// How often a call is tried anew, by a newer state or with other holders.
const TRIES: usize = 20;
/// Between two tries: holders take a step between two rounds.
const PAUSE: Duration = Duration::from_millis(250);

/// Somebody who calls.
pub struct Caller<'a> {
    way: Way,
    folder: PathBuf,
    ledger: Ledger,
    /// How many of the best rows each text is read with.
    most: usize,
    grace: Duration,
    holders: Holders,
    /// What ranks rows, once there were several.
    router: Option<Routing>,
    /// Whether somebody was told which rows are asked.
    told: bool,
    /// What the person who asked is told.
    tell: &'a mut dyn FnMut(&str),
}

impl<'a> Caller<'a> {
    /// Reaches the run of a folder, under the folder's own key, to read with its `most` best rows.
    ///
    /// # Errors
    /// [`Failure`]: the folder belongs to no run, its steward cannot be reached, its model cannot be asked, or there are
    /// several rows and the folder has no router that is the run's.
    pub async fn open(
        folder: &Path,
        most: usize,
        grace: Duration,
        tell: &'a mut dyn FnMut(&str),
    ) -> Outcome<Self> {
        let way = way(folder).await?;
        let ledger = Ledger::new(way.manifest.clone());
        let holders = Holders::new(way.peers.clone(), way.identity.id());
        let (folder, router, told) = (folder.to_owned(), None, false);
        let mut caller = Self { way, folder, ledger, most, grace, holders, router, told, tell };
        caller.follow().await?;
        // What is wrong with the router is said before the text begins.
        caller.ranked(&[])?;
        if most > 1 && newest(&caller.ledger).rows == 1 {
            let yet = if caller.way.manifest.model.rows() > 1 { " so far" } else { "" };
            (caller.tell)(&format!("the model has one row{yet}: it alone is asked"));
        }
        Ok(caller)
    }

    /// The agreement of the run.
    pub fn manifest(&self) -> &Manifest {
        &self.way.manifest
    }

    /// The logits of the token that follows a text.
    ///
    /// # Errors
    /// [`Failure`] when no holder answers.
    pub async fn after(&mut self, text: &[u32]) -> Outcome<Vec<f32>> {
        let mut answers = Vec::new();
        // CALL-14: when the rows that have not answered yet are waited for no more.
        let mut until = None;
        for _ in 0..TRIES {
            let rows = self.wanted(text, &answers)?;
            if rows.is_empty() {
                break;
            }
            let later = self.read(text, rows, until, &mut answers).await?;
            if !answers.is_empty() {
                let until = *until.get_or_insert_with(|| Instant::now() + self.grace);
                if until <= Instant::now() {
                    break;
                }
            }
            if later {
                self.wait(until).await?;
            }
        }
        if answers.is_empty() { Err(nobody()) } else { Ok(mixed(&answers)) }
    }

    /// CALL-12: the best rows that have not answered yet and that somebody can be asked about, as many as are still wanted.
    fn wanted(&mut self, text: &[u32], answers: &[RowAnswer]) -> Outcome<Vec<RankedRow>> {
        let mut rows = self.ranked(text)?;
        rows.retain(|ranked| {
            let answered = answers.iter().any(|answer| answer.ranked.row == ranked.row);
            !answered && !self.holders.of(&self.ledger, ranked.row).is_empty()
        });
        rows.truncate(self.most.saturating_sub(answers.len()));
        if newest(&self.ledger).rows > 1 && !rows.is_empty() && !self.told {
            let named: Vec<String> = rows.iter().map(|ranked| ranked.row.to_string()).collect();
            (self.tell)(&format!("asking holders of the rows that suit the text best: {}", named.join(", ")));
            self.told = true;
        }
        Ok(rows)
    }

    /// All rows of the newest state, the one that suits a text best first.
    fn ranked(&mut self, text: &[u32]) -> Outcome<Vec<RankedRow>> {
        if newest(&self.ledger).rows == 1 {
            return Ok(vec![RankedRow::ONLY]);
        }
        let router = match self.router.take() {
            Some(router) => router,
            None => router(&self.way.manifest, &self.folder)?,
        };
        let sequence = self.way.manifest.model.sequence as usize;
        Ok(ranked(self.router.insert(router), text, sequence))
    }

    /// Calls holders of these rows, all at once. Whether some of them may answer later.
    async fn read(
        &mut self,
        text: &[u32],
        rows: Vec<RankedRow>,
        until: Option<Instant>,
        answers: &mut Vec<RowAnswer>,
    ) -> Outcome<bool> {
        let races: Vec<Race> =
            rows.iter().map(|ranked| self.race(ranked.row, text)).collect::<Outcome<_>>()?;
        let (ledger, manifest) = (&self.ledger, &self.way.manifest);
        let outcomes = self.holders.ask(ledger, manifest, &races, self.grace, until).await;
        self.say_who_failed();
        let mut later = false;
        for ((ranked, race), outcome) in rows.into_iter().zip(&races).zip(outcomes) {
            match outcome {
                Answering::Given(given) => {
                    if let Some(logits) = self.agreed(race, given).await? {
                        let logits = logits.into_iter().map(real).collect();
                        answers.push(RowAnswer { ranked, logits });
                    }
                }
                Answering::Later => later = true,
                Answering::Nobody => {}
            }
        }
        Ok(later)
    }

    /// Waits for holders that had something else to do, and takes in what was sealed meanwhile.
    async fn wait(&mut self, until: Option<Instant>) -> Outcome<()> {
        let waited = async {
            sleep(PAUSE).await;
            self.follow().await
        };
        match until {
            None => waited.await,
            // Whoever does not answer by then is not waited for, and neither is the steward.
            Some(until) => timeout_at(until, waited).await.unwrap_or(Ok(())),
        }
    }

    /// CALL-10: the answer that holds, of one holder or of two. None where the call is to be made again, without those who lied.
    async fn agreed(&mut self, race: &Race, given: Vec<Given>) -> Outcome<Option<Vec<i32>>> {
        let mut given = given.into_iter();
        let Some(first) = given.next() else { return Ok(None) };
        let Some(second) = given.next().filter(|second| second.logits != first.logits) else {
            return Ok(Some(first.logits));
        };
        let court = Court { way: &self.way, folder: &self.folder };
        let mut liars = court.convict(&race.ask, &race.signed, [&first, &second], self.tell).await?;
        if liars.is_empty() {
            liars = self.banned([first.holder, second.holder]).await?;
        }
        let true_one = [&first, &second].into_iter().find(|given| !liars.contains(&given.holder));
        for given in [&first, &second] {
            // Not known to be true is not true enough to be asked again.
            if liars.is_empty() || liars.contains(&given.holder) {
                self.holders.leave_out(given.holder);
            }
        }
        Ok(true_one.filter(|_| !liars.is_empty()).map(|given| given.logits.clone()))
    }

    /// Which of two the steward has banned, once it has examined them.
    async fn banned(&mut self, holders: [MemberId; 2]) -> Outcome<Vec<MemberId>> {
        for _ in 0..TRIES {
            self.follow().await?;
            let banned: Vec<MemberId> =
                holders.into_iter().filter(|holder| self.ledger.is_banned(holder)).collect();
            if !banned.is_empty() {
                return Ok(banned);
            }
            sleep(PAUSE).await;
        }
        Ok(Vec::new())
    }

    fn say_who_failed(&mut self) {
        for (member, why) in self.holders.failed() {
            (self.tell)(&format!("{member} {why}: it is asked no more"));
        }
    }

    /// What is asked: by the state that whoever takes part in the newest round computes on.
    fn race(&self, row: Row, text: &[u32]) -> Outcome<Race> {
        let manifest = &self.way.manifest;
        let state = newest(&self.ledger);
        let tokens = List::new(read_of(manifest, text).to_vec())?;
        let ask = Ask { round: state.round, root: state.root, row, tokens, positions: 1 };
        ask.check(manifest).map_err(|reject| Failure::usage(reject.to_string()))?;
        let signed = self.way.identity.sign(manifest.run(), &ask);
        Ok(Race { ask, signed, wanted: if drawn()? { 2 } else { 1 } })
    }

    /// Takes in what was sealed since.
    async fn follow(&mut self) -> Outcome<()> {
        loop {
            let request = Request::Follow(Follow { height: self.ledger.height(), board: 0, notice: 0 });
            let asked = self.way.peers.ask(&self.way.steward, &request);
            // Where nothing is new the steward lets its answer wait, and there is nothing to take in.
            let Ok(answer) = timeout(GRACE, asked).await else { return Ok(()) };
            let Response::News(news) = answer? else {
                return Err(muster_replica::PeerError::Unexpected.into());
            };
            for signed in &news.records {
                let why = |reject| format!("the steward has broken a rule of its ledger: {reject}");
                self.ledger.apply(signed).map_err(|reject| Failure::environment(why(reject)))?;
            }
            if self.ledger.height() > news.newest || news.records.is_empty() {
                return Ok(());
            }
        }
    }
}

/// Whether this call goes to two holders. From the system's randomness: who could foresee it would lie in the others.
fn drawn() -> Outcome<bool> {
    let mut word = [0; 4];
    getrandom::fill(&mut word)
        .map_err(|error| Failure::environment(format!("the system gives no randomness ({error})")))?;
    Ok(u32::from_le_bytes(word) % DOUBLED == 0)
}

fn nobody() -> Failure {
    Failure::environment(
        "no holder answers: `muster members` shows who takes part and which rows they hold, and only nodes that listen can be asked",
    )
}
