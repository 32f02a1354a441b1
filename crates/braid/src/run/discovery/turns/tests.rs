use super::*;

const NQN: &str = "nqn.2026-01.org.example:v0";

fn controller(number: u8) -> Endpoint {
    Endpoint {
        address: format!("10.0.9.{number}:8009").parse().unwrap(),
        nqn: nvme::wire::fabrics::DISCOVERY_NQN.into(),
    }
}

fn uri(port: usize) -> String {
    format!("nvme-tcp://10.0.0.1:{port}/{NQN}")
}

/// Ports that controllers tell of.
fn told(all: &[(usize, &[u8])]) -> Plan {
    let missing = all.iter().map(|(port, by)| {
        let by = by.iter().map(|it| controller(*it)).collect();
        (uri(*port).parse().unwrap(), by)
    });
    Plan {
        missing: missing.collect(),
        surplus: Vec::new(),
    }
}

fn found(count: usize, by: u8) -> impl Iterator<Item = (String, String)> {
    let by = in_words(&controller(by));
    (0..count).map(move |port| (uri(20_000 + 1000 * by.len() + port), by.clone()))
}

const PAUSE_MAX: Duration = Duration::from_secs(60);

#[test]
fn many_refused_ones_that_sort_first_keep_none_out() {
    // One controller tells of them all: after each has had its turn, so has the last.
    let all: Vec<(usize, &[u8])> = (1001..=1065).map(|port| (port, &[1][..])).collect();
    let plan = told(&all);
    let places = Places::new(0, &BTreeMap::new(), &plan, &[]);
    let (mut queue, begun) = (Queue::default(), Instant::now());
    queue.keep(plan.named(), begun);
    let mut tried = Vec::new();
    // A round a second, in which each attempt takes no time: the refused ones are due again.
    for round in 0..5 {
        let now = begun + Duration::from_secs(2 * round);
        for _ in 0..16 {
            if let Some((uri, _)) = queue.next(&plan, &places, now) {
                queue.refused(&uri.to_string(), "no".into(), PAUSE_MAX, now);
                tried.push(uri.to_string());
            }
        }
    }
    for port in 1001..=1065 {
        assert!(tried.contains(&uri(port)), "{port} had no turn: {tried:?}");
    }
}

#[test]
fn who_tells_of_many_has_no_more_turns_than_who_tells_of_few() {
    let mut all: Vec<(usize, &[u8])> = (1001..=1900).map(|port| (port, &[1][..])).collect();
    all.push((3001, &[2]));
    // The liar tells of this one too, and first.
    all.push((3002, &[1, 2]));
    let plan = told(&all);
    let places = Places::new(0, &BTreeMap::new(), &plan, &[]);
    let (mut queue, now) = (Queue::default(), Instant::now());
    queue.keep(plan.named(), now);
    let mut tried = Vec::new();
    for _ in 0..4 {
        let (uri, _) = queue.next(&plan, &places, now).unwrap();
        queue.refused(&uri.to_string(), "no".into(), PAUSE_MAX, now);
        tried.push(uri.to_string());
    }
    assert_eq!(tried, [uri(1001), uri(3001), uri(1002), uri(3002)]);
}

#[test]
fn each_controller_has_places_that_no_other_takes() {
    let plan = told(&[(1001, &[1]), (3001, &[2]), (3002, &[2])]);
    // One alone may take all places but those which the others want.
    let taken: BTreeMap<_, _> = found(PATHS_MAX - 2, 1).collect();
    let places = Places::new(PATHS_MAX - 2, &taken, &plan, &[]);
    assert!(!places.has_one_for(&controller(1)));
    assert!(places.has_one_for(&controller(2)));
    let alone = told(&[(1001, &[1])]);
    assert!(Places::new(PATHS_MAX - 2, &taken, &alone, &[]).has_one_for(&controller(1)));
    assert!(!Places::new(PATHS_MAX, &taken, &alone, &[]).has_one_for(&controller(1)));
    // One that has not told anything yet may want its share.
    let places = Places::new(PATHS_MAX - SHARE, &taken, &alone, &[controller(2)]);
    assert!(!places.has_one_for(&controller(1)));
    // A path without a place waits, and that is reported once.
    let (mut queue, now) = (Queue::default(), Instant::now());
    queue.keep(alone.named(), now);
    assert_eq!(queue.next(&alone, &places, now), None);
    assert!(queue.crowded(&alone, &places, now).is_some());
    assert_eq!(queue.crowded(&alone, &places, now), None);
    assert!(
        queue.next_at() > Some(now),
        "it would be looked at for ever"
    );
}

#[test]
fn a_reason_is_said_once_and_pauses_grow() {
    let plan = told(&[(1001, &[1])]);
    let (mut queue, mut now) = (Queue::default(), Instant::now());
    let mut said = Vec::new();
    for why in ["a", "b", "a", "b", "a", "c"] {
        queue.keep(plan.named(), now);
        said.extend(queue.refused(&uri(1001), why.into(), PAUSE_MAX, now));
        let at = queue.next_at().unwrap();
        assert!(at > now && at <= now + PAUSE_MAX);
        now = at;
    }
    assert_eq!(said, ["a", "b", "c"]);
    queue.keep(std::iter::empty(), now);
    assert_eq!(queue.next_at(), None);
}
