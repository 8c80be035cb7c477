//! Admission: newcomers, and everything else that a member wants and only a record grants.

use muster_core::codec::encode;
use muster_core::error::Reject;
use muster_core::ledger::{Ledger, Standing};
use muster_core::messages::enrol::Enrol;
use muster_core::messages::record::Body;
use muster_core::sign::Signed;

use super::interface::Question;

/// Proposals whose authors wait for the seal.
#[derive(Default)]
pub(super) struct Admission {
    /// By the encoding of the body.
    waiting: Vec<(Vec<u8>, Question)>,
}

impl Admission {
    /// The author of this proposal waits for its seal.
    pub(super) fn wait(&mut self, body: &Body, question: Question) {
        self.waiting.push((encode(body), question));
    }

    /// The question to answer now that this proposal is sealed or refused; none where nobody waits for it.
    pub(super) fn answered(&mut self, body: &[u8]) -> Option<Question> {
        let index = self.waiting.iter().position(|(waiting, _)| waiting == body)?;
        Some(self.waiting.swap_remove(index).1)
    }
}

/// The record that admits a newcomer, `date` seconds after 1970; `None` where it is a member already.
///
/// # Errors
/// [`Reject`] for a member that is gone for good, and for what the ledger refuses.
pub(super) fn enrol(ledger: &Ledger, signed: Signed<Enrol>, date: u64) -> Result<Option<Body>, Reject> {
    let run = ledger.run();
    let author = signed.verify(run)?.author();
    // A request may come twice when its answer was lost.
    if let Some(member) = ledger.member(&author) {
        let gone = matches!(member.standing, Standing::Banned | Standing::Left);
        return if gone { Err(Reject::NotEntitled("enrol again")) } else { Ok(None) };
    }
    let enrol = ledger.check_enrol(&signed)?;
    let expires = enrol.invitation.as_ref().map(|shown| shown.invitation.verify(run)).transpose()?;
    // LEDGER-5: only the steward has a clock, so no follower can check this.
    if expires.is_some_and(|invitation| invitation.expires < date) {
        return Err(Reject::Rule("the invitation has expired; ask for another one"));
    }
    Ok(Some(Body::Admit(signed)))
}
