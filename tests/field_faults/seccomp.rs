//! What container runtimes forbid by default, for a child process.

use std::collections::BTreeMap;
use std::process::Command;

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

use crate::support::Registrar;

/// System calls that the default profile of containerd and Docker denies to a process without capabilities
/// (`profiles/seccomp/default.json` of moby). The start of the row's own process needs `mount`, `umount2` and `unshare`, so those
/// are not in the list; without capabilities they fail anyway.
const DENIED: [libc::c_long; 40] = [
    libc::SYS_acct,
    libc::SYS_add_key,
    libc::SYS_bpf,
    libc::SYS_clock_adjtime,
    libc::SYS_clock_settime,
    libc::SYS_delete_module,
    libc::SYS_fanotify_init,
    libc::SYS_finit_module,
    libc::SYS_fsconfig,
    libc::SYS_get_mempolicy,
    libc::SYS_init_module,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_io_uring_setup,
    libc::SYS_kcmp,
    libc::SYS_kexec_file_load,
    libc::SYS_kexec_load,
    libc::SYS_keyctl,
    libc::SYS_lookup_dcookie,
    libc::SYS_mbind,
    libc::SYS_move_pages,
    libc::SYS_name_to_handle_at,
    libc::SYS_nfsservctl,
    libc::SYS_open_by_handle_at,
    libc::SYS_perf_event_open,
    libc::SYS_pidfd_getfd,
    libc::SYS_pivot_root,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_ptrace,
    libc::SYS_quotactl,
    libc::SYS_reboot,
    libc::SYS_request_key,
    libc::SYS_set_mempolicy,
    libc::SYS_setns,
    libc::SYS_settimeofday,
    libc::SYS_swapoff,
    libc::SYS_swapon,
    libc::SYS_syslog,
    libc::SYS_userfaultfd,
];

/// Starts a registrar from a thread that is under the filter: children inherit it, and nothing else does.
pub fn spawn_restricted(command: Command) -> Registrar {
    std::thread::spawn(move || {
        let rules: BTreeMap<_, _> = DENIED.iter().map(|call| (*call, Vec::new())).collect();
        let denied = SeccompAction::Errno(libc::EPERM.unsigned_abs());
        let arch = std::env::consts::ARCH.try_into().unwrap();
        let filter = SeccompFilter::new(rules, SeccompAction::Allow, denied, arch).unwrap();
        let program = BpfProgram::try_from(filter).unwrap();
        seccompiler::apply_filter(&program).unwrap();
        Registrar::spawn(command)
    })
    .join()
    .unwrap()
}
