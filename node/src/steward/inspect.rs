//! Aggregators under the steward's eye: values are fetched as soon as they are announced, and a part that its
//! contributors object to is reduced again before anything is sealed.

use std::collections::BTreeSet;
use std::time::Duration;

use muster_core::audit::{Claim, Judgement};
use muster_core::ids::Height;
use muster_core::ledger::Standing;
use muster_core::messages::evidence::Evidence;
use muster_core::messages::round::PartResult;
use muster_core::messages::wire::Notice;
use muster_core::sign::Signed;
use muster_replica::contact;

use super::actor::{Actor, Message};
use super::court::{Accusation, Wants};
use super::hearing::Ruling;
use crate::exit::Outcome;

impl Actor {
    /// Fetches a part's values while contributors look at them.
    pub(super) fn prefetch(&self, signed: &Signed<PartResult>) {
        let ledger = self.ledger();
        let Ok(result) = signed.verify(ledger.run()) else { return };
        let plan = ledger.round(result.round).and_then(|view| view.parts().get(result.part.index()));
        let (Some(plan), Some(holder)) = (plan, contact(ledger, &result.author())) else { return };
        let (blocks, results, court) = (plan.blocks.clone(), self.results.clone(), self.court.clone());
        tokio::spawn(async move {
            let (round, digest) = (result.round, result.digest);
            let holders = std::slice::from_ref(&holder);
            match court.peers.values(holders, &court.layout, round, &blocks, &digest).await {
                Ok(values) => results.put(round, &blocks, &digest, values),
                Err(error) => {
                    tracing::debug!("part {} of round {round} is not there yet: {error}", result.part)
                }
            }
        });
    }

    /// Reduces a part again that contributors object to.
    pub(super) fn inspect(&mut self, result: Signed<PartResult>) {
        let Some(accusation) = self.suspicion(&result) else {
            let said = result.verify(self.ledger().run());
            let now = self.now();
            return said.into_iter().for_each(|said| {
                self.conductor.inspected(now, (said.part, &said.author()), false);
            });
        };
        let wants = Wants::of(self.ledger(), &accusation.evidence, &accusation.claim);
        let (court, sender) = (self.court.clone(), self.sender.clone());
        // The round waits for this, so that holders who never answer must not hold it up for longer than its timer.
        let patience = Duration::from_millis(u64::from(self.ledger().manifest().timers.result));
        tokio::spawn(async move {
            let judgement = court.examine_part(accusation.evidence.clone(), wants, patience).await;
            let _ = sender.send(Message::Inspected(Box::new(accusation), judgement)).await;
        });
    }

    /// The evidence that it would be, if the part is wrong.
    fn suspicion(&self, result: &Signed<PartResult>) -> Option<Accusation> {
        let said = result.verify(self.ledger().run()).ok()?;
        let evidence = Evidence::Aggregation(self.ledger().round(said.round)?.reduction(&said, result)?);
        Some(Accusation {
            digest: evidence.digest(),
            evidence,
            accuser: self.identity.id(),
            claim: Claim { culprit: said.author(), subject: said.author(), round: said.round },
            owed: false,
            tries: 0,
        })
    }

    /// A part was reduced again: it counts if it is right, and else it is struck, whether its aggregator lied or its
    /// inputs are not to be had.
    pub(super) fn inspected(&mut self, accusation: &Accusation, judgement: Outcome<Judgement>) {
        let judgement = match judgement {
            Ok(judgement) => judgement,
            Err(failure) => {
                self.state.failed = Some(failure);
                return;
            }
        };
        let Evidence::Aggregation(part) = &accusation.evidence else { return };
        let Ok(result) = part.result.verify(self.ledger().run()) else { return };
        let right = matches!(judgement, Judgement::NotGuilty(_));
        match &judgement {
            Judgement::Guilty { .. } => {
                self.decided(accusation, Ruling::plain(accusation.evidence.clone(), judgement));
            }
            other => self.report.inspected(&result, right, other),
        }
        self.conductor.inspected(self.now(), (result.part, &result.author()), right);
    }

    /// Shows what would be sealed of each part, where that is not what was shown before, and fetches its values.
    pub(super) fn show_results(&mut self) {
        let ledger = self.conductor.ledger();
        let attempt = |part| ledger.current().and_then(|view| view.attempt(part)).unwrap_or_default();
        let standing =
            self.conductor.standing().map(|(part, digest, signed)| (part, (digest, attempt(part)), signed));
        let new = standing.filter(|(part, said, _)| self.state.shown.get(part) != Some(said));
        let new: Vec<_> = new.map(|(part, said, signed)| (part, said, signed.clone())).collect();
        for (part, said, signed) in new {
            self.state.shown.insert(part, said);
            self.prefetch(&signed);
            self.board.post(Notice::Result(signed));
        }
    }

    /// Says who has failed (LEDGER-20) by a record.
    pub(super) fn tell_failures(&mut self, height: Height) {
        let members = self.conductor.ledger().members().iter();
        let lost = members.filter(|member| {
            member.since == height && member.failures > 0 && member.standing == Standing::Away
        });
        let lost: Vec<_> = lost.map(|member| member.id).collect();
        lost.into_iter().for_each(|member| self.report.moved(member, "kept others waiting and is away"));
    }

    /// Says once who kept a round waiting.
    pub(super) fn tell_stalling(&mut self) {
        let stalling: BTreeSet<_> = self.conductor.stalling().copied().collect();
        for member in stalling.difference(&self.state.stalling) {
            self.report.moved(*member, "did not check the results in time");
        }
        self.state.stalling = stalling;
    }
}
