//! What follows from a batch of news.

use std::collections::BTreeMap;

use muster_core::ledger::{Event, Ledger, RoundView, Stage, Standing};
use muster_core::messages::enrol::Return;
use muster_core::messages::record::Body;
use muster_core::messages::wire::Notice;
use tracing::info;

use super::audits::Stop;
use super::{HaltCause, LedgerUpdate, Verifier, VerifierEffect};

/// Rounds after which the whole state is written down again, fewer than those whose results are kept. A process that was
/// killed goes on from there, by the results that others still have, or fetches the state; one that finds a wrong root has
/// the state before it from there.
const STATE_ROUNDS: u32 = 4;

impl Verifier {
    pub(super) fn news(&mut self, news: &LedgerUpdate<'_>) {
        let ledger = news.ledger;
        if self.board != 0 && self.board != news.board {
            info!("the steward was restarted; open audits are asked again");
            self.audits.board_changed(ledger);
        }
        self.board = news.board;
        if let Err(why) = self.audits.take(ledger, news.events) {
            return self.halt(Stop::from(why).into());
        }
        let audits = &self.audits;
        self.parts.survey(self.now, ledger, &self.me, |round| audits.node_coin(round));
        self.stirred = true;
        self.keep_states(ledger);
        self.save_state(news.events);
        self.keep_evidence(news.events);
        self.stand(news);
        self.catch_up(news);
        if ledger.stage() == Stage::Closed && !self.over {
            self.over = true;
            self.effects.push_back(VerifierEffect::End);
        }
    }

    /// Has on the disk what audits compute on that are open, or may yet fall to this verifier when another one goes, and
    /// nothing else of it. Which are open is known once the news are read to their end.
    fn keep_states(&mut self, ledger: &Ledger) {
        // Earlier, an audit that the board shows as over would look open, and its state would be written for nothing.
        if !self.caught_up {
            return;
        }
        let mut wanted = self.audits.unfinished_rounds();
        // DUTY-4: what another verifier leaves undone may fall to this one, and then it needs the state.
        let due = ledger.rounds().filter(|view| view.auditable() && ledger.is_answerable(view.round()));
        wanted.extend(due.map(RoundView::round));
        // ROUND-28: of the round under way it is the older state, which nothing else keeps.
        wanted.extend(ledger.current().filter(|view| view.is_behind()).map(RoundView::round));
        let roots = |round| Some((round, ledger.round(round)?.base().clone()));
        let fresh = wanted.difference(&self.kept).filter_map(|round| roots(*round));
        // A state that is gone from memory cannot be written any more, and is not asked for in each batch.
        let fresh: BTreeMap<_, _> = fresh.filter(|(_, roots)| self.states.contains(&roots.root())).collect();
        if fresh.is_empty() && self.kept.is_subset(&wanted) {
            return;
        }
        self.kept.retain(|round| wanted.contains(round));
        self.kept.extend(fresh.keys());
        self.effects.push_back(VerifierEffect::KeepStates { wanted, fresh });
    }

    /// Has the whole state written down now and then.
    fn save_state(&mut self, events: &[Event]) {
        let applied = events.iter().rev().find_map(|event| match event {
            Event::Applied(round, _) => Some(*round),
            Event::Sealed(_) | Event::Notice(_) => None,
        });
        if applied.is_some_and(|round| round.next().0.is_multiple_of(STATE_ROUNDS)) {
            self.effects.push_back(VerifierEffect::SaveState);
        }
    }

    /// Keeps what bans rest on, beside what it accuses itself of; ends when it was expelled.
    fn keep_evidence(&mut self, events: &[Event]) {
        let bans = events.iter().filter_map(|event| match event {
            Event::Sealed(record) => match &record.body {
                Body::Ban(ban) => Some(ban),
                _ => None,
            },
            Event::Notice(_) | Event::Applied(..) => None,
        });
        for ban in bans {
            let ban = Box::new(ban.clone());
            if ban.culprit == self.me {
                return self.halt(HaltCause::Banned(Some(ban)));
            }
            self.effects.push_back(VerifierEffect::KeepEvidence(ban));
        }
    }

    /// Says that it is back when the ledger has it away; ends when it was expelled.
    fn stand(&mut self, news: &LedgerUpdate<'_>) {
        let ledger = news.ledger;
        // Its admission may be among the news that are still to be read.
        let Some(member) = ledger.member(&self.me).filter(|_| !self.over) else { return };
        if member.standing == Standing::Banned {
            return self.halt(HaltCause::Banned(None));
        }
        // Not before it is in step: it would come back to duties that it could not do.
        let away = member.standing == Standing::Away && news.in_step && member.since < ledger.height();
        self.back = (away && !self.returning).then(|| {
            let (height, addresses) = (ledger.height(), member.addresses.clone());
            let back = Return { height, addresses, engagement: member.engagement };
            Notice::Return(self.identity.sign(ledger.run(), &back))
        });
    }

    fn catch_up(&mut self, news: &LedgerUpdate<'_>) {
        if !news.whole || self.caught_up || self.over {
            return;
        }
        self.caught_up = true;
        // Only at the end of the news: its admission may be among those still to be read.
        if news.ledger.member(&self.me).is_none() {
            return self.halt(HaltCause::Stranger);
        }
        info!("watching run {} as verifier {}", news.ledger.run(), self.me);
    }
}
