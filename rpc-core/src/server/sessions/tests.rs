use super::*;

#[test]
fn names_are_not_those_of_a_generator_that_can_be_followed() {
    let first_name = || {
        // Whoever knows this generator's state knows what it draws next.
        fastrand::seed(7);
        let sessions = Sessions::default();
        sessions.draw_name().expect("the system has random numbers")
    };
    assert_ne!(first_name(), first_name());
    let seeded = || {
        let sessions = Sessions::with_random(SessionLimits::default(), Random::from_seed(7));
        sessions.draw_name().expect("it needs no system")
    };
    assert_eq!(seeded(), seeded());
}
