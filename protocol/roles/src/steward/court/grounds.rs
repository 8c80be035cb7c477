//! Which accusations the court examines, decided before anything is fetched or recomputed.

use muster_core::audit::docket::Docket;
use muster_core::audit::{Claim, check_reduction, check_steps, claim};
use muster_core::error::Reject;
use muster_core::ids::{MemberId, Part, Round};
use muster_core::ledger::{Ledger, Standing};
use muster_core::messages::enrol::Role;
use muster_core::messages::evidence::Evidence;

use super::queue::is_anybodys;

/// What the court looks at.
#[derive(Clone, Copy)]
pub(crate) struct Facts<'a> {
    /// The ledger so far.
    pub(crate) ledger: &'a Ledger,
    /// The audits on the board.
    pub(crate) docket: &'a Docket,
    /// The steward, which accuses as well.
    pub(crate) steward: MemberId,
    /// Milliseconds of the machine's clock.
    pub(crate) now: u64,
}

/// Whether an accusation is examined.
pub(super) enum Examination {
    /// The accusation makes this claim, and is examined.
    Due(Claim),
    /// The accusation is admissible, but an examination would change nothing.
    Needless,
}

/// Decides whether evidence that `accuser` brings is examined.
///
/// # Errors
/// [`Reject`] for evidence that its author may not bring, or that need not be examined.
pub(super) fn examination(
    facts: &Facts<'_>,
    accuser: &MemberId,
    evidence: &Evidence,
) -> Result<Examination, Reject> {
    let Facts { ledger, docket, .. } = *facts;
    let own = *accuser == facts.steward;
    if !own && !may_accuse(ledger, accuser, evidence) {
        return Err(Reject::NotEntitled("accuse: only verifiers do"));
    }
    // A dishonest steward would drop it, and an honest one is not convicted by anything.
    if matches!(evidence, Evidence::Misconduct(_)) {
        return Err(Reject::NotEntitled("accuse the steward before the steward: show it to the others"));
    }
    let claim = claim(ledger.manifest(), evidence)?;
    check_evidence(ledger, evidence, &claim)?;
    // Nobody is banned twice.
    if is_out(ledger, &claim.culprit) {
        return Ok(Examination::Needless);
    }
    // AUDIT-25: a verifier signs what all leaves give, so that a false word costs it something. The docket
    // then has it examined.
    if matches!(evidence, Evidence::Total(_)) && ledger.manifest().profile.leaves_stand_for_integers() && !own
    {
        let signed = docket.has_charged(accuser, claim.round, &claim.culprit);
        let rule = Reject::Rule("what all leaves give is said as a signed recomputation");
        return if signed { Ok(Examination::Needless) } else { Err(rule) };
    }
    // DUTY-10: a verifier that signs its steps anew would otherwise have one audit examined again and again.
    if !own {
        require_posted(docket, ledger, evidence)?;
        require_drawn(docket, ledger, evidence, accuser)?;
    }
    Ok(Examination::Due(claim))
}

/// Whether a member is banned, or none at all: there is nobody to ban.
pub(super) fn is_out(ledger: &Ledger, member: &MemberId) -> bool {
    ledger.member(member).is_none_or(|member| member.standing == Standing::Banned)
}

/// Verifiers that are not expelled may accuse, and anybody that has messages which contradict each other.
fn may_accuse(ledger: &Ledger, accuser: &MemberId, evidence: &Evidence) -> bool {
    let member = ledger.member(accuser).filter(|member| member.role == Role::Verifier);
    let stands = member.is_some_and(|member| matches!(member.standing, Standing::Active | Standing::Away));
    stands || is_anybodys(evidence)
}

/// A transcript is that of the board, and its verifier came by the sealed admission: the same words signed
/// anew, or beside another record, are no new evidence.
fn require_posted(docket: &Docket, ledger: &Ledger, evidence: &Evidence) -> Result<(), Reject> {
    // What rests on no audit was never posted.
    let Some(transcript) = evidence.transcript() else { return Ok(()) };
    let posted = docket.transcript(ledger, &transcript.request.digest());
    let mut fits = posted.as_ref() == Some(transcript);
    if let Evidence::Verdict(verdict) = evidence {
        let verifier = ledger.member(&transcript.verdict.claimed_signer());
        // DUTY-9: the admission gives the coins that the verdict is judged by.
        fits &= verifier.is_some_and(|verifier| verifier.admitted.as_ref() == Some(&verdict.admit));
    }
    if fits { Ok(()) } else { Err(Reject::Stale("the audit is not the one on the board")) }
}

/// AUDIT-28: a part is reduced again on a verifier's word only where its own coin, on the board, draws a
/// block of it: nobody chooses what the steward computes.
fn require_drawn(
    docket: &Docket,
    ledger: &Ledger,
    evidence: &Evidence,
    accuser: &MemberId,
) -> Result<(), Reject> {
    // Only blocks of parts are drawn.
    let Evidence::Aggregation(part) = evidence else { return Ok(()) };
    let result = part.result.verify(ledger.run())?;
    // Without the round nothing is examined either.
    let Some(view) = ledger.round(result.round) else { return Ok(()) };
    let shown = Reject::Stale("a drawn block is looked at by a coin that was shown");
    let coin = docket.shown_coin(result.round, accuser).ok_or(shown)?;
    let drawn = view.drawn_blocks(accuser, coin, ledger.manifest().audit.blocks_ppm);
    if drawn.contains_key(&result.part) {
        return Ok(());
    }
    Err(Reject::NotEntitled("accuse this aggregator: no block of the part was drawn"))
}

/// AUDIT-29: whether it is a member's own fault that its integers are unavailable: somebody can dial it, or
/// nobody else has signed for some of them.
pub(super) fn withholds(ledger: &Ledger, round: Round, member: &MemberId) -> bool {
    let can_be_dialled = ledger.member(member).is_some_and(|member| !member.addresses.is_empty());
    let Some(view) = ledger.round(round) else { return can_be_dialled };
    let Some(slot) = view.slot_of(member) else { return can_be_dialled };
    let signed = |part: Part| view.inputs().get(part.index()).is_some_and(|inputs| inputs.contains(slot));
    can_be_dialled || !view.parts_of(slot).all(|(part, _)| signed(part))
}

/// Refuses what need not be examined, before anything is fetched or recomputed because of it:
///
/// - evidence about a round to come, for which nobody can be banned yet;
/// - leaves of a round that is not over, which has no jurors yet;
/// - an audit whose steps do not fit, or that was not its author's to make;
/// - an answer by a state that was not sealed before the named round, or whose round is forgotten.
fn check_evidence(ledger: &Ledger, evidence: &Evidence, claim: &Claim) -> Result<(), Reject> {
    check_steps(ledger.manifest(), evidence)?;
    if claim.round >= ledger.first_round_without() {
        return Err(Reject::Stale("nobody is judged for a round that is still to come"));
    }
    if let Evidence::Answer(call) = evidence {
        let ask = call.ask.verify(ledger.run())?;
        // CALL-7: a state that this ledger has not is one that nobody can compute on, now or later.
        let sealed = ledger.is_state_before(ask.round, &ask.root);
        return if sealed { Ok(()) } else { Err(Reject::Stale("this is not the state before that round")) };
    }
    if let (Evidence::Aggregation(part), Some(view)) = (evidence, ledger.round(claim.round)) {
        return check_reduction(ledger.manifest(), part, view);
    }
    // What messages decide needs no round, and of leaves nothing is judged once theirs is forgotten.
    let Some(view) = ledger.round(claim.round).filter(|_| evidence.is_of_leaves()) else { return Ok(()) };
    if view.results().is_none() {
        return Err(Reject::Stale("leaves are judged once their round is over"));
    }
    // All leaves are for anybody to recompute.
    let Some(transcript) = evidence.transcript() else { return Ok(()) };
    // AUDIT-12: otherwise whoever has coins could audit, and accuse, a member of its choice.
    let (slot, verifier) = (view.slot_of(&claim.subject), transcript.verdict.claimed_signer());
    if !slot.is_some_and(|slot| ledger.was_inspector(view, slot, &verifier)) {
        return Err(Reject::NotEntitled("judge this contribution: it was not drawn"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use muster_core::codec::List;
    use muster_core::ids::Digest;
    use muster_core::ledger::fixture::{Makers, Newcomer, commitment};
    use muster_core::messages::evidence::Total;
    use muster_core::messages::record::{Body, Inputs};
    use muster_core::messages::round::Bitmap;

    use super::super::tests::{CHEAT, OTHER, begun, member, two_commitments};
    use super::*;

    #[test]
    fn no_leaf_is_judged_while_its_round_is_open() {
        let (ledger, steward) = begun();
        let freeze = steward.sign(ledger.run(), &ledger.record(Body::Close(Digest::default())));
        let culprit = member(CHEAT).id();
        let claim = Claim { culprit, subject: culprit, round: Round(0) };
        let total = Evidence::Total(Total { freeze, culprit });
        assert!(matches!(check_evidence(&ledger, &total, &claim), Err(Reject::Stale(_))));
        // What messages decide does not wait.
        assert!(check_evidence(&ledger, &two_commitments(&ledger), &claim).is_ok());
    }

    #[test]
    fn audit_29_who_cannot_be_dialled_withholds_nothing_that_others_have_signed_for() {
        let (makers, [dialled, hidden]) = (Makers::of(1, 2), [OTHER, CHEAT].map(member));
        let newcomers = [Newcomer::node(&dialled).at("192.0.2.1:4000"), Newcomer::node(&hidden)];
        let mut ledger = makers.begin(makers.tiny(4, 2), newcomers);
        let commits = [&dialled, &hidden].map(|one| (one, commitment(&ledger, one, 0, Digest::default())));
        makers.freeze(&mut ledger, commits);
        let view = ledger.current().expect("a round");
        let slot = view.slot_of(&hidden.id()).expect("a seat");
        let mut everybody = Bitmap::default();
        view.commitments().for_each(|(slot, _)| everybody.insert(slot));
        let signed_for = vec![everybody; view.parts().len()];
        let with_inputs = |parts: Vec<Bitmap>| {
            let (mut ledger, parts) = (ledger.clone(), List::new(parts).expect("few parts"));
            makers.seal(&mut ledger, Body::Inputs(Inputs { round: Round(0), attempt: 0, parts }));
            ledger
        };
        let withheld =
            |ledger: &Ledger| [&dialled, &hidden].map(|one| withholds(ledger, Round(0), &one.id()));
        assert_eq!(withheld(&with_inputs(signed_for.clone())), [true, false]);
        let mut lacking = signed_for;
        let part = view.parts_of(slot).map(|(part, _)| part).next().expect("a part");
        lacking[part.index()] = Bitmap::default();
        assert_eq!(withheld(&with_inputs(lacking)), [true, true], "one of its parts has no other holder");
    }
}
