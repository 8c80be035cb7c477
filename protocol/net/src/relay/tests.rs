use super::*;

const SOON: Duration = Duration::from_secs(1);

fn key(name: u8) -> EndpointKey {
    EndpointKey([name; 32])
}

fn member(name: u8) -> MemberId {
    MemberId([name; 32])
}

#[test]
fn chan_28_a_member_has_one_key_at_the_relay_and_two_connections() {
    let (places, now) = (Places::<u8>::new(2), Instant::now());
    let take = |name, of| places.take(member(name), key(of), now);
    let (had, refused) = ((true, Vec::new()), (false, Vec::new()));
    assert!(!places.enter(key(1), 9, now), "nobody has named it");
    assert_eq!(take(1, 1), had);
    assert!(places.enter(key(1), 1, now) && places.enter(key(1), 2, now));
    assert!(!places.enter(key(1), 3, now), "a third one");
    places.leave(1);
    assert_eq!(take(1, 1), had);
    assert!(places.enter(key(1), 4, now), "renewed, it keeps them");
    // Another's key is not to be had by naming it.
    assert_eq!((take(2, 1), take(2, 2)), (refused.clone(), had));
    assert!(!places.enter(key(1), 9, now));
    assert_eq!(take(3, 3), refused, "both places are taken");
    // After a restart.
    assert_eq!(take(1, 4), (true, vec![key(1)]));
    assert!(!places.enter(key(1), 9, now) && places.enter(key(4), 9, now));
}

#[test]
fn chan_28_a_place_that_is_not_renewed_ends() {
    let (places, now) = (Places::<u8>::new(2), Instant::now());
    places.take(member(1), key(1), now);
    assert!(places.enter(key(1), 9, now + LEASE - SOON));
    assert!(!places.enter(key(1), 9, now + LEASE));
    assert_eq!(places.clear(now + LEASE - SOON), []);
    assert_eq!(places.clear(now + LEASE), [key(1)], "also where nobody else asks");
    places.take(member(1), key(1), now);
    assert_eq!(places.take(member(2), key(2), now + LEASE), (true, vec![key(1)]));
}
