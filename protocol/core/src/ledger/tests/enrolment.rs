//! Who is admitted: invitations, coins, names, and whom members bring in.

use super::*;

#[test]
fn ledger_5_whoever_enrols_is_new_invited_and_brings_what_its_role_needs() {
    let mut chain = Chain::open(manifest(1));
    let terms = || Some(coins(0).terms());
    let enrols = |chain: &Chain, who: &Identity, role, coins| {
        takes(chain, Body::Admit(chain.enrol(who, (role, false), coins)))
    };
    assert!(enrols(&chain, &node(0), Role::Node, None));
    assert!(!enrols(&chain, &node(0), Role::Node, terms()), "a node brings coins");
    assert!(enrols(&chain, &verifier(0), Role::Verifier, terms()));
    assert!(!enrols(&chain, &verifier(0), Role::Verifier, None), "a verifier brings none");
    let enrol: Enrol = chain.enrol(&node(0), (Role::Node, false), None).claimed().unwrap();
    let uninvited = Enrol { invitation: None, ..enrol.clone() };
    let run = chain.ledger.run();
    assert!(!takes(&chain, Body::Admit(node(0).sign(run, &uninvited))));
    assert!(!takes(&chain, Body::Admit(node(1).sign(run, &enrol))), "somebody else's leave");
    for (name, good) in [
        ("ada-2.x_Y", true),
        ("Ada L", true),
        (" ada", false),
        ("ada ", false),
        ("a\u{434}a", false),
        ("<ada>", false),
    ] {
        let named = Enrol { name: Text::new(name).unwrap(), ..enrol.clone() };
        assert_eq!(takes(&chain, Body::Admit(node(0).sign(run, &named))), good, "{name}");
    }
    assert!(Text::<NAME_BYTES>::new("\u{202e}ada").is_err(), "what nobody sees is in no name");
    chain.admit_node(0, false);
    assert!(!enrols(&chain, &node(0), Role::Node, None), "a member enrols again");

    let mut full = manifest(1);
    full.admission.most_members = 2;
    let mut chain = Chain::open(full);
    (0..2).for_each(|number| chain.admit_node(number, false));
    assert!(!enrols(&chain, &node(2), Role::Node, None), "the run is full");
}

#[test]
fn ledger_5_an_invitation_has_its_uses() {
    let mut chain = Chain::open(manifest(1));
    let run = chain.ledger.run();
    let secret = InvitationSecret::new([3; 32]);
    let twice =
        Invitation { role: Role::Node, uses: 2, expires: u64::MAX, key: secret.key(), founder: false };
    let twice = organiser().sign(run, &twice);
    let enrol = |number: u8| {
        let invitation = Some(secret.present(run, twice.clone(), node(number).id()));
        Body::Admit(node(number).sign(
            run,
            &Enrol {
                invitation,
                addresses: List::default(),
                coins: None,
                name: Default::default(),
                engagement: Default::default(),
            },
        ))
    };
    (0..2).for_each(|number| drop(chain.seal(enrol(number))));
    assert_eq!(chain.refusal(enrol(2)), Some(Reject::Rule("the invitation is used up")));
}

#[test]
fn coin_6_coins_are_registered_before_what_they_are_used_with() {
    let enrol = |chain: &Chain, first: u32| {
        let terms = CoinTree::new([4; 32], Round(first), 5, 4).unwrap().terms();
        takes(chain, Body::Admit(chain.enrol(&verifier(1), (Role::Verifier, false), Some(terms))))
    };
    let mut chain = Chain::open(manifest(4));
    assert!(enrol(&chain, 0), "before the first round there is no lead");
    chain = Chain::begin();
    let lead = chain.ledger.manifest().audit.coin_lead;
    assert!(!enrol(&chain, lead - 1));
    assert!(enrol(&chain, lead));
    chain.finish_round();
    assert!(!enrol(&chain, lead));
    assert!(enrol(&chain, lead + 1));
}

/// A run whose members may each bring in one node, two deep.
fn with_invitations() -> Chain {
    let mut manifest = manifest(1);
    manifest.admission.member_invites = 1;
    manifest.admission.depth = 2;
    manifest.admission.per_round = 9;
    let mut chain = Chain::open(manifest);
    chain.admit_node(0, false);
    chain.admit_verifier(0);
    chain
}

/// Brings in a node by an invitation of this author's.
fn invited_by(chain: &Chain, author: &Identity, number: u8, role: (Role, bool)) -> Body {
    let run = chain.ledger.run();
    let (invitation, secret) = invitation(role.0, role.1);
    let presented = secret.present(run, author.sign(run, &invitation), node(number).id());
    let addresses = List::new(vec![Text::new("host:1").unwrap()]).unwrap();
    Body::Admit(node(number).sign(
        run,
        &Enrol {
            invitation: Some(presented),
            addresses,
            coins: None,
            name: Default::default(),
            engagement: Default::default(),
        },
    ))
}

#[test]
fn stand_5_a_member_that_weighs_brings_in_as_many_nodes_as_it_may() {
    let mut chain = with_invitations();
    let plain = (Role::Node, false);
    let takes_from = |chain: &Chain, author: &Identity, number, role| {
        takes(chain, invited_by(chain, author, number, role))
    };
    assert!(takes_from(&chain, &organiser(), 1, (Role::Node, true)), "the organiser names founders");
    assert!(takes_from(&chain, &node(0), 1, plain));
    assert!(!takes_from(&chain, &node(0), 1, (Role::Node, true)), "a member names no founders");
    assert!(!takes_from(&chain, &node(0), 1, (Role::Verifier, false)), "nor verifiers");
    assert!(!takes_from(&chain, &verifier(0), 1, plain), "a verifier brings in nobody");
    assert!(!takes_from(&chain, &identity(99), 1, plain), "nor does a stranger");
    chain.seal(invited_by(&chain, &node(0), 1, plain));
    assert!(!takes_from(&chain, &node(0), 2, plain), "one each");
    chain.seal(invited_by(&chain, &node(1), 2, plain));
    assert!(!takes_from(&chain, &node(2), 3, plain), "two deep");
    let order = organiser().sign(chain.ledger.run(), &CloseTree { member: node(3).id() });
    assert!(!takes(&chain, Body::CloseTree(order)), "nobody's tree");
    let mut chain = with_invitations();
    let leave = node(0).sign(chain.ledger.run(), &Leave { height: chain.ledger.height() });
    chain.seal(Body::Leave(leave));
    assert!(!takes_from(&chain, &node(0), 1, plain), "who has left brings in nobody");
}

/// What keys that cost nothing could fill is not the places alone.
#[test]
fn stand_8_so_many_strangers_come_in_a_round_however_many_places_are_free() {
    let mut manifest = manifest(4);
    manifest.admission = Admission { mode: Mode::Open, per_round: 2, ..Admission::closed(4, 0, 64) };
    let mut chain = Chain::begin_with(manifest);
    let stranger = |chain: &Chain, number: u8| {
        let addresses = List::new(vec![Text::new("host:1").unwrap()]).unwrap();
        let enrol = Enrol {
            invitation: None,
            addresses,
            coins: None,
            name: Default::default(),
            engagement: Default::default(),
        };
        Body::Admit(node(number).sign(chain.ledger.run(), &enrol))
    };
    for first in [10, 20] {
        (first..first + 2).for_each(|number| drop(chain.seal(stranger(&chain, number))));
        let enough = "enough newcomers came in this round (admission.per_round); try again in the next one";
        assert_eq!(chain.refusal(stranger(&chain, first + 2)), Some(Reject::Rule(enough)));
        let known = chain.enrol(&node(first + 3), (Role::Node, false), None);
        assert!(takes(&chain, Body::Admit(known)), "whom the organiser invites needs no turn");
        chain.finish_round();
    }
}
