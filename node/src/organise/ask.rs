//! Reading with a model that others hold: each token's logits are asked of holders, and drawn calls of two of them.
//!
//! Who is silent is not waited for. An answer binds its author: where two holders answer one call differently, the false
//! answer is written down as evidence and brought to the steward, which bans its author (CALL-7).

mod holders;
mod proof;

use std::path::{Path, PathBuf};
use std::time::Duration;

use muster_core::codec::List;
use muster_core::ids::{Digest, MemberId, Round, Row};
use muster_core::ledger::Ledger;
use muster_core::manifest::Manifest;
use muster_core::messages::call::{Ask, real};
use muster_core::messages::wire::{Follow, Request, Response};
use muster_core::sign::Signed;

use self::holders::{Answering, Given, Holders, Race};
use self::proof::Court;
use crate::exit::{Failure, Outcome};
use crate::organise::members::{Way, way};

/// How long holders may take once enough have answered, unless somebody says otherwise.
pub const GRACE: Duration = Duration::from_secs(2);
/// Rows whose answers are waited for, however long the others take.
const LEAST_ROWS: usize = 1;
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
    rows: usize,
    grace: Duration,
    holders: Holders,
    /// What the person who asked is told.
    tell: &'a mut dyn FnMut(&str),
}

/// A row that a text is read with, and how well it suits the text.
#[derive(Clone, Copy, Debug, PartialEq)]
struct RankedRow {
    row: Row,
    score: f64,
}

impl<'a> Caller<'a> {
    /// Reaches the run of a folder, under the folder's own key.
    ///
    /// # Errors
    /// [`Failure`]: the folder belongs to no run, its steward cannot be reached, or its model cannot be asked.
    pub async fn open(
        folder: &Path,
        rows: usize,
        grace: Duration,
        tell: &'a mut dyn FnMut(&str),
    ) -> Outcome<Self> {
        let way = way(folder).await?;
        let ledger = Ledger::new(way.manifest.clone());
        let holders = Holders::new(way.peers.clone(), way.identity.id());
        let mut caller = Self { way, folder: folder.to_owned(), ledger, rows, grace, holders, tell };
        caller.follow().await?;
        if rows > 1 {
            (caller.tell)("the model has one row: it alone is asked");
        }
        Ok(caller)
    }

    /// The agreement of the run.
    pub fn manifest(&self) -> &Manifest {
        &self.way.manifest
    }

    /// The logits of the token that follows these.
    ///
    /// # Errors
    /// [`Failure`] when no holder answers.
    pub async fn after(&mut self, tokens: &[u32]) -> Outcome<Vec<f32>> {
        let rows = ranked(tokens, self.rows);
        let mut answers = Vec::new();
        for RankedRow { row, score } in rows {
            match self.read(row, tokens).await {
                Ok(logits) => answers.push((score, logits)),
                // Enough others may answer.
                Err(failure) if answers.len() < LEAST_ROWS => return Err(failure),
                Err(_) => {}
            }
        }
        Ok(mixed(&answers))
    }

    /// The logits by one row.
    async fn read(&mut self, row: Row, tokens: &[u32]) -> Outcome<Vec<f32>> {
        for _ in 0..TRIES {
            let ask = self.question(row, tokens)?;
            let signed = self.way.identity.sign(self.way.manifest.run(), &ask);
            let wanted = if drawn()? { 2 } else { 1 };
            let race = Race { ask: &ask, signed: &signed, wanted, grace: self.grace };
            let answering = self.holders.ask(&self.ledger, &self.way.manifest, &race).await;
            self.say_who_failed();
            match answering {
                Answering::Given(given) => match self.agreed(&ask, &signed, given).await? {
                    Some(logits) => return Ok(logits.into_iter().map(real).collect()),
                    None => continue,
                },
                Answering::Later => {
                    tokio::time::sleep(PAUSE).await;
                    self.follow().await?;
                }
                Answering::Nobody => return Err(nobody(row)),
            }
        }
        Err(nobody(row))
    }

    /// CALL-10: the answer that holds, of one holder or of two. None where the call is to be made again, without those who lied.
    async fn agreed(
        &mut self,
        ask: &Ask,
        signed: &Signed<Ask>,
        given: Vec<Given>,
    ) -> Outcome<Option<Vec<i32>>> {
        let mut given = given.into_iter();
        let Some(first) = given.next() else { return Ok(None) };
        let Some(second) = given.next().filter(|second| second.logits != first.logits) else {
            return Ok(Some(first.logits));
        };
        let court = Court { way: &self.way, folder: &self.folder };
        let mut liars = court.convict(ask, signed, [&first, &second], self.tell).await?;
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
            tokio::time::sleep(PAUSE).await;
        }
        Ok(Vec::new())
    }

    fn say_who_failed(&mut self) {
        for (member, why) in self.holders.failed() {
            (self.tell)(&format!("{member} {why}: it is asked no more"));
        }
    }

    /// What is asked: by the state that whoever takes part in the newest round computes on.
    fn question(&self, row: Row, tokens: &[u32]) -> Outcome<Ask> {
        let (round, root) = newest(&self.ledger);
        let tokens = List::new(tokens.to_vec())?;
        let ask = Ask { round, root, row, tokens, positions: 1 };
        ask.check(&self.way.manifest).map_err(|reject| Failure::usage(reject.to_string()))?;
        Ok(ask)
    }

    /// Takes in what was sealed since.
    async fn follow(&mut self) -> Outcome<()> {
        loop {
            let request = Request::Follow(Follow { height: self.ledger.height(), board: 0, notice: 0 });
            let asked = self.way.peers.ask(&self.way.steward, &request);
            // Where nothing is new the steward lets its answer wait, and there is nothing to take in.
            let Ok(answer) = tokio::time::timeout(GRACE, asked).await else { return Ok(()) };
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

/// The newest state that every node at work has, and the round that it is before.
fn newest(ledger: &Ledger) -> (Round, Digest) {
    match ledger.current() {
        Some(view) => (view.round(), view.state().root()),
        None => (ledger.next_round(), ledger.state().root()),
    }
}

/// The rows that suit a text best, best first; a router ranks them where there is more than one.
fn ranked(_tokens: &[u32], most: usize) -> Vec<RankedRow> {
    let rows = [RankedRow { row: Row(0), score: 0.0 }];
    rows.into_iter().take(most).collect()
}

/// The logits of several rows, mixed by the softmax of their scores over those that have answered.
fn mixed(answers: &[(f64, Vec<f32>)]) -> Vec<f32> {
    let [first, others @ ..] = answers else { return Vec::new() };
    if others.is_empty() {
        return first.1.clone();
    }
    let best = answers.iter().map(|(score, _)| *score).fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = answers.iter().map(|(score, _)| (score - best).exp()).collect();
    let total: f64 = weights.iter().sum();
    let mix = |place: usize| {
        let parts = answers.iter().zip(&weights);
        parts.map(|((_, logits), weight)| f64::from(logits[place]) * weight / total).sum::<f64>() as f32
    };
    (0..first.1.len()).map(mix).collect()
}

/// Whether this call goes to two holders. From the system's randomness: who could foresee it would lie in the others.
fn drawn() -> Outcome<bool> {
    let mut word = [0; 4];
    getrandom::fill(&mut word)
        .map_err(|error| Failure::environment(format!("the system gives no randomness ({error})")))?;
    Ok(u32::from_le_bytes(word) % DOUBLED == 0)
}

fn nobody(row: Row) -> Failure {
    Failure::environment(format!(
        "no holder of row {row} answers: `muster members` shows who takes part, and only nodes that listen can be asked"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_row_is_read_as_it_is_and_several_are_mixed_by_their_scores() {
        assert_eq!(mixed(&[(3.0, vec![1.0, f32::NEG_INFINITY])]), [1.0, f32::NEG_INFINITY]);
        assert_eq!(mixed(&[(0.5, vec![1.0, 4.0]), (0.5, vec![3.0, 0.0])]), [2.0, 2.0]);
        let far = mixed(&[(0.0, vec![1.0]), (-1000.0, vec![9.0])]);
        assert_eq!(far, [1.0]);
        assert_eq!(ranked(&[1, 2], 3), [RankedRow { row: Row(0), score: 0.0 }]);
    }
}
