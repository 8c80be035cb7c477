//! Requests that the machine answers later.

use std::collections::BTreeMap;

use muster_core::ids::MemberId;
use muster_core::messages::wire::Response;
use muster_roles::steward::Question;
use tokio::sync::oneshot;

/// Requests that wait for their answers, numbered as they come.
#[derive(Default)]
pub(super) struct Questions {
    next: u64,
    open: BTreeMap<Question, (MemberId, oneshot::Sender<Response>)>,
}

impl Questions {
    /// A question that this request waits for.
    pub(super) fn ask(&mut self, from: MemberId, answer: oneshot::Sender<Response>) -> Question {
        let question = Question(self.next);
        self.next += 1;
        self.open.insert(question, (from, answer));
        question
    }

    /// Answers it, once.
    pub(super) fn answer(&mut self, question: Question, response: Response) {
        if let Some((_, answer)) = self.take(question) {
            let _ = answer.send(response);
        }
    }

    /// Who asks, and where the answer goes, for work that answers beside the machine.
    pub(super) fn take(&mut self, question: Question) -> Option<(MemberId, oneshot::Sender<Response>)> {
        self.open.remove(&question)
    }
}
