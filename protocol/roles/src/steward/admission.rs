//! Admission: newcomers, and everything else that a member wants and only a record grants.

use std::collections::BTreeMap;

use muster_core::codec::encode;
use muster_core::error::Reject;
use muster_core::ids::MemberId;
use muster_core::ledger::{Ledger, Standing};
use muster_core::manifest::Mode;
use muster_core::messages::enrol::{Addresses, Enrol};
use muster_core::messages::record::Body;
use muster_core::sign::Signed;

use super::interface::{Dial, Payer, Question};

/// Proposals whose authors wait for the seal.
#[derive(Default)]
pub(super) struct Admission {
    /// By the encoding of the body.
    waiting: Vec<(Vec<u8>, Question)>,
    /// Those whose authors are looked for where they say that they are.
    dialled: BTreeMap<Question, Body>,
}

impl Admission {
    /// The author of this proposal waits for its seal.
    pub(super) fn wait(&mut self, body: &Body, question: Question) {
        self.waiting.push((encode(body), question));
    }

    /// This proposal waits until its author was found.
    pub(super) fn dial(&mut self, question: Question, body: Body) {
        self.dialled.insert(question, body);
    }

    /// The proposal whose author was found, or not.
    pub(super) fn dialled(&mut self, question: Question) -> Option<Body> {
        self.dialled.remove(&question)
    }

    /// The question to answer now that this proposal is sealed or refused; none where nobody waits for it.
    pub(super) fn answered(&mut self, body: &[u8]) -> Option<Question> {
        let index = self.waiting.iter().position(|(waiting, _)| waiting == body)?;
        Some(self.waiting.swap_remove(index).1)
    }
}

/// CHAN-24: where the author of a proposal that the ledger takes must be found before it is sealed; `None` where it names nothing
/// new. The ledger is asked first, so that nobody is dialled for whoever may not come.
pub(super) fn dial(ledger: &Ledger, body: &Body) -> Option<Dial> {
    let known = |author: &MemberId| ledger.member(author).map(|member| &member.addresses);
    let (author, addresses): (MemberId, Addresses) = match body {
        Body::Admit(signed) => (signed.claimed_signer(), signed.verify(ledger.run()).ok()?.addresses.clone()),
        Body::Return(signed) => {
            (signed.claimed_signer(), signed.verify(ledger.run()).ok()?.addresses.clone())
        }
        _ => return None,
    };
    let new = !addresses.is_empty() && known(&author) != Some(&addresses);
    new.then(|| Dial { author, addresses, payer: payer(ledger, body, author) })
}

/// In whose share the dials for a proposal of `author` are.
fn payer(ledger: &Ledger, body: &Body, author: MemberId) -> Payer {
    let Body::Admit(signed) = body else { return Payer::Member(author) };
    let manifest = ledger.manifest();
    let enrol = signed.verify(ledger.run());
    let invitation = enrol.ok().and_then(|enrol| enrol.invitation.clone());
    Payer::Newcomers(match (invitation, &manifest.admission.mode) {
        // A member makes as many invitations as it likes, and pays for all of them.
        (Some(shown), _) if shown.invitation.claimed_signer() != manifest.organiser => {
            shown.invitation.claimed_signer()
        }
        (Some(shown), _) => shown.possession.claimed_signer(),
        (None, Mode::Open) => manifest.steward,
        (None, Mode::Listed(_) | Mode::Invited) => author,
    })
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
