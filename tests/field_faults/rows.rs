//! Every row, in the order of the table.

#![allow(clippy::too_many_lines, reason = "a table")]

use crate::runner::{Pace, Row};
use crate::{abuse, beyond, descriptors, driver, kubelet, phases, process, socket};

/// A row named after its function.
macro_rules! row {
    ($module:ident :: $name:ident, $pace:expr, $fault:literal) => {
        Row {
            name: stringify!($name),
            fault: $fault,
            pace: $pace,
            test: || Box::pin($module::$name()),
        }
    };
}

/// The rows of the reports, then our own.
pub fn all() -> Vec<Row> {
    [reported(), ours()].concat()
}

fn reported() -> Vec<Row> {
    use Pace::{Waits, Works};
    vec![
        row!(
            socket::f01_socket_deleted,
            Works,
            "registration socket deleted while running"
        ),
        row!(
            socket::f02_directory_made_anew,
            Works,
            "registration directory removed and re-created"
        ),
        row!(
            socket::f03_overlap_of_two_pods,
            Works,
            "two pods overlap, the older one stops"
        ),
        row!(
            process::f04_other_stop_signals,
            Works,
            "SIGINT, SIGHUP, SIGQUIT"
        ),
        row!(
            socket::f05_killed_and_restarted,
            Works,
            "SIGKILL, then a restart"
        ),
        row!(
            socket::f06_something_in_the_way,
            Works,
            "stale socket, file, directory, link in the way"
        ),
        row!(socket::f07_path_of_108_bytes, Works, "path of 108 bytes"),
        row!(socket::f08_hostile_names, Works, "hostile driver names"),
        row!(
            driver::f09_driver_comes_late,
            Waits(110),
            "driver up after 35 s, 90 s"
        ),
        row!(
            driver::f10_closed_then_silent_then_live_socket,
            Waits(30),
            "closed, then silent, then live driver socket"
        ),
        row!(
            driver::f11_get_plugin_info_fails_or_is_slow,
            Works,
            "GetPluginInfo fails three times, or is slow once"
        ),
        row!(
            driver::f12_no_access_to_the_drivers_socket,
            Waits(40),
            "EACCES on the driver's socket"
        ),
        row!(
            driver::f13_driver_comes_back_under_another_name,
            Works,
            "driver comes back under another name"
        ),
        row!(kubelet::f14_refusal, Works, "registration refused"),
        row!(
            kubelet::f15_five_refusals_with_policy_retry,
            Waits(75),
            "five refusals with policy retry"
        ),
        row!(
            kubelet::f16_kubelet_never_calls,
            Waits(95),
            "kubelet never calls"
        ),
        row!(
            kubelet::f17_notification_after_130_seconds,
            Waits(155),
            "notification 130 s after GetInfo"
        ),
        row!(
            kubelet::f18_replaced_by_another_registrar,
            Waits(110),
            "replaced by another registrar: can anyone tell?"
        ),
        row!(
            socket::f19_healthz_on_a_dead_or_silent_listener,
            Works,
            "/healthz with a dead or silent listener at the path"
        ),
        row!(process::f20_http_port_busy, Works, "HTTP port busy"),
        row!(
            process::f21_stopped_before_the_driver_exists_as_process_1,
            Works,
            "TERM before the driver exists, as process 1"
        ),
        row!(
            abuse::f22_probes_idle_connections_garbage_slowloris,
            Works,
            "10,000 probes, idle connections, garbage, slowloris"
        ),
        row!(abuse::f23_http2_abuse, Works, "HTTP/2 abuse"),
        row!(
            descriptors::f24_descriptor_limit,
            Works,
            "descriptor limit reached"
        ),
        row!(
            process::f25_read_only_root_no_capabilities_seccomp,
            Works,
            "read-only root, no capabilities, seccomp default"
        ),
        row!(
            socket::f26_umask_of_the_parent,
            Works,
            "parent umask 000, 022, 0777"
        ),
        row!(
            socket::f27_directory_full_or_read_only,
            Works,
            "registration directory full or read-only"
        ),
        row!(
            process::f28_stopped_for_a_minute,
            Waits(90),
            "process stopped for a minute and continued"
        ),
        row!(
            descriptors::f29_inotify_used_up,
            Works,
            "inotify instances or watches used up"
        ),
        row!(
            process::f30_standard_error_closed_or_unread,
            Works,
            "standard error closed, abandoned, unread"
        ),
        row!(
            kubelet::f31_path_too_long_on_the_host,
            Works,
            "path too long on the host only"
        ),
    ]
}

fn ours() -> Vec<Row> {
    use Pace::{Waits, Works};
    vec![
        row!(
            beyond::idle_without_a_system_call,
            Waits(90),
            "a minute without a system call once registered"
        ),
        row!(
            beyond::memory_under_abuse_of_the_registration_socket,
            Works,
            "memory under abuse of the registration socket"
        ),
        row!(
            beyond::memory_under_abuse_of_the_http_server,
            Works,
            "memory under abuse of the HTTP server"
        ),
        row!(
            beyond::connections_left_half_closed_and_unread,
            Works,
            "connections left half closed and unread"
        ),
        row!(
            beyond::registration_while_descriptors_are_used_up,
            Works,
            "registration while descriptors are used up"
        ),
        row!(
            beyond::driver_comes_while_descriptors_are_used_up,
            Works,
            "driver comes while descriptors are used up"
        ),
        row!(
            beyond::storm_of_events_in_the_registration_directory,
            Works,
            "storm of events in the registration directory"
        ),
        row!(
            beyond::overflow_of_the_event_queue,
            Works,
            "overflow of the event queue"
        ),
        row!(
            beyond::registration_directory_replaced,
            Works,
            "registration directory re-made, replaced by a file, by a link"
        ),
        row!(
            beyond::driver_directory_that_can_never_come_back,
            Works,
            "driver's directory that can never come back"
        ),
        row!(
            beyond::driver_socket_replaced_without_pause,
            Works,
            "driver's socket replaced without pause"
        ),
        row!(
            beyond::chain_of_driver_names,
            Works,
            "chain of driver names"
        ),
        row!(
            beyond::successor_with_another_name,
            Waits(60),
            "successor that answers with another name"
        ),
        row!(
            beyond::three_registrars_of_one_driver,
            Waits(45),
            "three registrars of one driver"
        ),
        row!(
            beyond::ten_thousand_notifications,
            Works,
            "10,000 notifications"
        ),
        row!(
            beyond::storm_of_get_info_from_64_connections,
            Works,
            "storm of GetInfo from 64 connections"
        ),
        row!(
            beyond::failing_driver_is_not_hammered,
            Waits(30),
            "failing driver is not hammered"
        ),
        row!(
            beyond::refused_while_the_directory_is_full,
            Works,
            "refused, and the directory is full at the retry"
        ),
        row!(
            beyond::socket_that_cannot_be_removed,
            Works,
            "socket that cannot be removed at the end"
        ),
        row!(
            phases::term_while_the_driver_is_waited_for,
            Works,
            "TERM while the driver is waited for"
        ),
        row!(
            phases::term_with_a_kubelet_in_every_state,
            Works,
            "TERM with a kubelet in every state"
        ),
        row!(
            phases::term_while_the_path_is_not_ours,
            Works,
            "TERM while the path is not ours"
        ),
        row!(
            phases::whole_life_as_process_1,
            Works,
            "a whole life as process 1"
        ),
    ]
}
