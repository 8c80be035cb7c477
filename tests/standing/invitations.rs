//! Whom members bring in, and by which invitation.

use muster_core::codec::{decode, encode};
use muster_core::ids::{Digest, RunId};
use muster_core::manifest::Admission;
use muster_core::messages::enrol::{Invitation, Leave, Possession, Presented, Role};
use muster_core::messages::record::Body;
use muster_core::sign::Signed;

use crate::chain::{
    Chain, ORGANISER, VERIFIERS, family, id, invitation, on_probation, person, refused, secret, secret_of,
};

#[test]
fn members_bring_in_as_many_and_as_deep_as_the_manifest_says() {
    let mut chain = family();
    assert_eq!((chain.member(42).inviter, chain.member(42).depth), (Some(id(40)), 2));
    // STAND-5: how many, how deep, by whom, and for which role.
    refused(chain.bring(43, 10), "as many as it may");
    refused(chain.bring(43, 42), "too long");
    refused(chain.bring(43, 99), "only the organiser and members do");
    refused(chain.admit(43, Some(invitation(40, Role::Node, true, 1)), 40), "neither founders nor verifiers");
    let verifier = invitation(40, Role::Verifier, false, 1);
    refused(chain.admit(VERIFIERS[0], Some(verifier), 40), "neither founders nor verifiers");
    // An invitation is for one run, and for a number of uses.
    let other = invitation(40, Role::Node, false, 1);
    let elsewhere = person(40).sign(RunId(Digest([3; 32])), &other);
    let enrol = chain.enrol(43, Some(secret_of(&other).present(chain.run(), elsewhere, id(43))));
    refused(chain.seal(Body::Admit(enrol)), "another run");
    let once = Invitation { uses: 1, ..invitation(40, Role::Node, false, 1) };
    chain.admit(43, Some(once.clone()), 40).expect("its first use");
    refused(chain.admit(44, Some(once), 40), "used up");
    let leave = person(41).sign(chain.run(), &Leave { height: chain.ledger.height() });
    chain.seal(Body::Leave(leave)).expect("a leave");
    refused(chain.bring(44, 41), "while it takes part");
}

/// What a newcomer that was not invited can make of an enrolment that it read in the ledger.
#[test]
fn stand_9_an_invitation_that_was_read_lets_nobody_in() {
    let mut chain = family();
    let run = chain.run();
    let open = invitation(ORGANISER, Role::Node, false, 60);
    chain.admit(60, Some(open.clone()), ORGANISER).expect("it holds the secret");
    let seen = chain.presented(60, &open, ORGANISER);
    let not_its_own = |chain: &mut Chain, shown: Presented| {
        let enrol = chain.enrol(61, Some(shown));
        refused(chain.seal(Body::Admit(enrol)), "has not signed for this newcomer");
    };
    // A possession for another member, and one by another key: the newcomer's own, the inviter's, another invitation's.
    not_its_own(&mut chain, seen.clone());
    let for_it = Possession { newcomer: id(61) };
    for by in [person(61), person(40)] {
        not_its_own(&mut chain, Presented { possession: by.sign(run, &for_it), ..seen.clone() });
    }
    not_its_own(&mut chain, secret(1).present(run, seen.invitation.clone(), id(61)));
    // One of another run.
    let elsewhere = secret_of(&open).present(RunId(Digest([3; 32])), seen.invitation.clone(), id(61));
    let enrol = chain.enrol(61, Some(Presented { invitation: seen.invitation.clone(), ..elsewhere }));
    refused(chain.seal(Body::Admit(enrol)), "another run");
    // The signature of a possession with another name put in.
    let body = encode(&person(61).sign(run, &for_it));
    let mut forged = encode(&seen.possession);
    let tail = forged.len() - 32;
    forged[tail..].copy_from_slice(&body[tail..]);
    let forged: Signed<Possession> = decode(&forged).expect("canonical");
    let enrol = chain.enrol(61, Some(Presented { possession: forged, ..seen }));
    refused(chain.seal(Body::Admit(enrol)), "signature");
    // Whoever was given the secret still comes.
    chain.admit(61, Some(open), ORGANISER).expect("it holds the secret");
}

#[test]
fn a_newcomer_brings_in_nobody_before_its_probation_is_over() {
    let mut chain = Chain::new(Admission { member_invites: 2, depth: 2, per_round: 9, ..on_probation() });
    chain.begin();
    chain.bring(30, 10).expect("a founder may");
    chain.round(Vec::new());
    // STAND-5: an inviter has weight.
    refused(chain.bring(31, 30), "past its probation");
    chain.earn(30, 2);
    assert!(chain.ledger.weighs(chain.member(30)));
    chain.bring(31, 30).expect("it has earned it");
    refused(chain.bring(32, VERIFIERS[0]), "only a node");
}
