package kubelet

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"interop/kubelet/common/protocol"
)

var noise = flag.Bool("noise", false, "hold the kubelet against itself instead of our plugin manager: what differs is no difference")

// differs runs the sequence under the kubelet's code and under our plugin manager, each in a world of its own, and compares.
// A machine that is too busy to keep the sequence's time makes it another sequence; whether it was is judged by the clock
// alone, before anything is compared, and such a run is made again.
func differs(t *testing.T, release release, s sequence) {
	t.Helper()
	for attempt := range attempts {
		var kubelet, manager trace
		var late [2][]string
		t.Run(fmt.Sprint("attempt ", attempt+1), func(t *testing.T) {
			t.Run("kubelet", func(t *testing.T) {
				t.Parallel()
				kubelet, late[0] = s.run(t, release, startKubelet)
			})
			t.Run("manager", func(t *testing.T) {
				t.Parallel()
				start := startManager
				if *noise {
					start = startKubelet
				}
				manager, late[1] = s.run(t, release, start)
			})
		})
		if t.Failed() {
			return
		}
		if late[0] == nil && late[1] == nil {
			wantSame(t, s, kubelet, manager)
			return
		}
		t.Logf("attempt %d says nothing, the machine is too busy: kubelet: %v, manager: %v", attempt+1, late[0], late[1])
	}
	t.Errorf("no attempt of %d kept the time: run fewer at once (-test.parallel)", attempts)
}

// attempts at a sequence, for a machine that has other things to do.
const attempts = 5

func TestDifferential(t *testing.T) {
	t.Parallel()
	for _, release := range releases {
		for _, s := range scripts(release) {
			t.Run(s.name+"/"+release.name, func(t *testing.T) {
				t.Parallel()
				differs(t, release, s)
			})
		}
	}
}

// driver is a plugin that a kubelet takes.
func driver(name string) protocol.PluginSettings {
	return protocol.PluginSettings{Name: name, NodeID: "id-of-" + name, MaxVolumes: 3, Topology: map[string]string{"example.com/zone": "z1"}}
}

// with is the settings after the change.
func with(settings protocol.PluginSettings, change func(*protocol.PluginSettings)) protocol.PluginSettings {
	change(&settings)
	return settings
}

// failing is the settings with a fault of a method.
func failing(settings protocol.PluginSettings, method string, fault protocol.Fault) protocol.PluginSettings {
	settings.Faults = map[string]protocol.Fault{method: fault}
	return settings
}

// fault is that many calls answered with an error; 0: all.
func fault(times int) protocol.Fault {
	return protocol.Fault{Times: times, Code: uint32(codes.Internal), Message: "fault"}
}

// at is the settings with another endpoint.
func at(settings protocol.PluginSettings, endpoint string) protocol.PluginSettings {
	settings.Endpoint = &endpoint
	return settings
}

// delayed is the settings with another delay of all calls of a method.
func delayed(settings protocol.PluginSettings, method string, milliseconds int) protocol.PluginSettings {
	settings.DelaysMS = map[string]int{method: milliseconds}
	return settings
}

// s begins a sequence.
func s(name string, sockets []string, rest int, before ...action) sequence {
	return sequence{name: name, sockets: sockets, before: before, rest: rest}
}

func together(actions ...[]action) []action {
	var all []action
	for _, some := range actions {
		all = append(all, some...)
	}
	return all
}

// scripts are the sequences that are the same each time.
func scripts(release release) []sequence {
	a, b := driver("a.example.com"), driver("b.example.com")
	versions := func(settings protocol.PluginSettings, versions ...string) protocol.PluginSettings {
		settings.Versions = append([]string{}, versions...)
		return settings
	}
	one := []string{"a.sock"}
	two := []string{"a.sock", "b.sock"}
	return []sequence{
		sequence{name: "registration", sockets: two, before: appear(0, a), rest: 2}.
			plus(2, appear(1, b)...).
			plus(2, replace(0)).
			plus(3, unlink(1)).
			plus(3, unlink(0)),

		sequence{name: "versions", sockets: []string{"a.sock", "b.sock", "c.sock"}, rest: 4, before: together(
			appear(0, versions(a)), appear(1, versions(b, "0.3.0", "boo")), appear(2, versions(driver("c"), "2.0.0", "v3", "x")))}.
			plus(4, configure(0, versions(a, "v1.2.3-rc", "0.3.0")), configure(2, versions(driver("c"), "1.0", "9"))).
			plus(5, configure(1, versions(b, "v1.9.3", "2.0.1"))),

		s("spellings", one, 2, appear(0, versions(a, `"\t\u00e9\u200b\u00a0\U0001f600\U000e0001`))...).
			plus(2, configure(0, versions(a, "1.0", "1")), restart()).
			plus(2, configure(0, versions(a, " v1.0-x")), restart()).
			plus(2, configure(0, versions(a, "v01.2.3")), restart()).
			plus(2, configure(0, versions(a, "1.00.2")), restart()).
			plus(2, configure(0, versions(a, "1.18446744073709551615.1", "1.0.18446744073709551616")), restart()).
			plus(2, configure(0, versions(a, "-1.0", "+1.0", "1..0", "1.0.")), restart()).
			plus(2, configure(0, versions(with(a, func(s *protocol.PluginSettings) { s.Name = "\x01\"\u2028<\u200b" }), "0.1")), restart()).
			plus(2, configure(0, with(a, func(s *protocol.PluginSettings) { s.Name = "\u00e9\u2028<&>\"" })), restart()),

		s("endpoints", one, 2, appear(0, at(a, "unix:///nowhere/csi.sock"))...).
			plus(2, configure(0, at(a, "csi.sock")), restart()).
			plus(2, configure(0, at(a, "/")), restart()).
			plus(2, configure(0, at(a, "/"+strings.Repeat("long", 30))), restart()).
			plus(2, configure(0, at(a, "dns:///nowhere")), restart()).
			plus(2, configure(0, at(a, "/a b%2f?c#d")), restart()),

		s("mute", two, 4, configure(0, delayed(a, protocol.Connect, 3000)), serveCSI(0), publish(0)).
			plus(5, configure(1, delayed(b, protocol.Connect, 60_000)), serveCSI(1), publish(1)),

		s("mute driver", one, 24, configure(0, delayed(a, protocol.ConnectDriver, 60_000)), serveCSI(0), publish(0)),

		sequence{name: "no handler", sockets: two, rest: 5,
			before: appear(0, with(a, func(s *protocol.PluginSettings) { s.Type = "Unknown" }))}.
			plus(2, appear(1, with(b, func(s *protocol.PluginSettings) { s.Type = "csiplugin" }))...).
			plus(4, configure(0, a)),

		sequence{name: "no name", sockets: one, rest: 5, before: appear(0, with(a, func(s *protocol.PluginSettings) { s.Name = "" }))}.
			plus(4, replace(0)),

		sequence{name: "no endpoint", sockets: two, rest: 6,
			before: appear(0, with(a, func(s *protocol.PluginSettings) { s.Endpoint = new(string) }))}.
			plus(2, appear(1, with(b, func(s *protocol.PluginSettings) { missing := "/nowhere/csi.sock"; s.Endpoint = &missing }))...).
			plus(6, configure(0, a)),

		sequence{name: "GetInfo", sockets: two, rest: 4,
			before: appear(0, failing(a, "GetInfo", fault(2)))}.
			plus(1, appear(1, failing(b, "GetInfo", protocol.Fault{Times: 2, DelayMS: 1500}))...).
			plus(8, replace(0)),

		sequence{name: "notification", sockets: two, rest: 4,
			before: appear(0, failing(a, "NotifyRegistrationStatus", fault(2)))}.
			plus(1, appear(1, failing(b, "NotifyRegistrationStatus", protocol.Fault{Times: 1, DelayMS: 7000}))...).
			plus(12, replace(0)),

		sequence{name: "NodeGetInfo", sockets: two, rest: 4,
			before: appear(0, failing(a, "NodeGetInfo", fault(1)))}.
			plus(1, appear(1, failing(b, "NodeGetInfo", fault(0)))...).
			plus(19, configure(1, b)).
			plus(6, replace(1)),

		sequence{name: "no driver", sockets: one, rest: 6, before: []action{configure(0, a), publish(0)}}.
			plus(4, serveCSI(0)).
			plus(4, replace(0)).
			plus(4, closeCSI(0), replace(0)).
			plus(4, serveCSI(0)),

		sequence{name: "final answer", sockets: one, rest: 3, before: appear(0, failing(a, "NodeGetInfo",
			protocol.Fault{Times: 1, Code: uint32(codes.Unknown), Message: "fault: no handler registered for plugin type"}))}.
			plus(3, replace(0)),

		sequence{name: "no node id", sockets: one, rest: 4, before: appear(0, with(a, func(s *protocol.PluginSettings) { s.NodeID = "" }))}.
			plus(4, replace(0)).
			plus(6, configure(0, a)).
			plus(4, replace(0)),

		sequence{name: "gone while registered", sockets: two, rest: 7,
			before: appear(0, failing(a, "NodeGetInfo", protocol.Fault{Times: 1, DelayMS: 4000}))}.
			plus(1, unlink(0)).
			plus(1, appear(1, failing(b, "NodeGetInfo", protocol.Fault{Times: 1, DelayMS: 6000, Code: uint32(codes.Internal), Message: "fault"}))...).
			plus(1, unlink(1)),

		sequence{name: "replaced while registered", sockets: two, rest: 4,
			before: appear(0, failing(a, "NodeGetInfo", protocol.Fault{Times: 1, DelayMS: 4000}))}.
			plus(1, replace(0)).
			plus(7, appear(1, failing(b, "NodeGetInfo", protocol.Fault{Times: 1, DelayMS: 4000}))...).
			plus(1, hangUp(1)).
			plus(6, replace(1)),

		sequence{name: "same name", sockets: two, rest: 5, before: appear(0, a)}.
			plus(2, appear(1, a)...).
			plus(4, configure(1, versions(a, "0.9.0", "1.0.0"))).
			plus(4, configure(1, with(versions(a, "1.1.0"), func(s *protocol.PluginSettings) { s.NodeID = "other" }))).
			plus(6, replace(0)).
			plus(4, unlink(1)),

		sequence{name: "same name at once", sockets: two, rest: 5, before: together(appear(0, a), appear(1, a))}.
			plus(4, replace(0)).
			plus(6, replace(1)),

		sequence{name: "failing successor", sockets: two, rest: 5, before: appear(0, a)}.
			plus(2, appear(1, failing(versions(a, "1.5.0"), "NodeGetInfo", fault(0)))...).
			plus(18, replace(0)),

		sequence{name: "name changes", sockets: one, rest: 3, before: appear(0, a)}.
			plus(2, configure(0, b)).
			plus(2, replace(0)).
			plus(4, configure(0, driver("c"))).
			plus(2, unlink(0)),

		sequence{name: "topology", sockets: two, rest: 6, before: appear(0, a)}.
			plus(2, configure(0, with(a, func(s *protocol.PluginSettings) {
				s.Topology = map[string]string{"example.com/zone": "z1", "example.com/a": "<&>"}
			})), replace(0)).
			plus(4, configure(0, with(a, func(s *protocol.PluginSettings) { s.Topology = map[string]string{"example.com/zone": "z2"} })), replace(0)).
			plus(4, appear(1, with(b, func(s *protocol.PluginSettings) { s.Topology = nil }))...).
			plus(3, configure(1, with(b, func(s *protocol.PluginSettings) { s.Topology = map[string]string{} })), replace(1)),

		sequence{name: "limits", sockets: one, rest: 3, before: appear(0, with(a, func(s *protocol.PluginSettings) { s.MaxVolumes = 1 << 40 }))}.
			plus(2, configure(0, with(a, func(s *protocol.PluginSettings) { s.MaxVolumes = -1 })), restart()).
			plus(2, configure(0, with(a, func(s *protocol.PluginSettings) { s.MaxVolumes = 0 })), replace(0)).
			plus(4, configure(0, with(a, func(s *protocol.PluginSettings) { s.MaxVolumes = 1<<31 - 1 })), replace(0)).
			plus(4, configure(0, with(a, func(s *protocol.PluginSettings) { s.NodeID = `"<ä>&` })), replace(0)),

		sequence{name: "limit of a higher version", sockets: two, rest: 4, before: appear(0, a)}.
			plus(2, appear(1, with(versions(a, "1.1.0"), func(s *protocol.PluginSettings) { s.MaxVolumes = 9 }))...),

		sequence{name: "file names", sockets: []string{"a.sock", ".b.sock", "c"}, rest: 3,
			before: together(appear(0, a), appear(1, b), appear(2, driver("c")), []action{makeFile("file")})}.
			plus(2, makeFile("other"), link("c", ".hidden"), link("a.sock", "link.sock")).
			plus(2, link(".b.sock", "b.sock")).
			plus(3, remove("b.sock"), remove("file"), remove("link.sock")).
			plus(2, rename("c", "d")).
			plus(4, remove("d")),

		sequence{name: "directories", sockets: []string{"sub/a.sock", ".hidden/b.sock", "late/deep/c.sock"}, rest: 4,
			before: together([]action{makeDirectory("sub"), makeDirectory(".hidden")}, appear(0, a), appear(1, b))}.
			// One after the other: what is made within a directory before the kubelet has come to it, it may miss.
			plus(2, makeDirectory("late")).
			plus(1, makeDirectory("late/deep")).
			plus(1, appear(2, driver("c"))...).
			plus(3, remove("sub")).
			plus(2, makeDirectory("sub")).
			plus(1, replace(0)).
			plus(4, remove("late")),

		sequence{name: "files", sockets: two, rest: 3, before: append(appear(0, a), makeFile(".file"), makeDirectory("directory"))}.
			plus(2, file("chmod a.sock", func(path func(string) string) error { return os.Chmod(path("a.sock"), 0) })).
			plus(1, appear(1, b)...).
			plus(2, file("ln b.sock c.sock", func(path func(string) string) error { return os.Link(path("b.sock"), path("c.sock")) })).
			plus(2, rename("b.sock", "../b.sock")).
			plus(1, rename(".file", "a.sock")).
			plus(2, remove("c.sock"), remove("a.sock")).
			plus(2, link("directory", "link")).
			plus(1, rename("../b.sock", "directory/b.sock")),

		sequence{name: "linked directory", sockets: []string{"../elsewhere/a.sock", "../elsewhere/b.sock"}, rest: 3,
			before: append(together([]action{makeDirectory("../elsewhere")}, appear(0, a)), link("../elsewhere", "early"))}.
			plus(2, link("../elsewhere", "late")).
			plus(2, appear(1, b)...).
			plus(3, remove("late")).
			plus(2, rename("../elsewhere", "here")).
			plus(3, rename("here", "../elsewhere")).
			plus(2, replace(0)),

		sequence{name: "no directory", sockets: one, rest: 3}.
			plus(1, remove(""), restart()).
			plus(2, appear(0, a)...),

		sequence{name: "hidden directory", sockets: []string{".late/a.sock", "moved/b.sock"}, rest: 4,
			before: together([]action{makeDirectory("moved")}, appear(1, b))}.
			plus(2, append([]action{makeDirectory(".late")}, appear(0, a)...)...).
			plus(2, rename(".late", "visible")).
			plus(3, rename("moved", ".moved")).
			plus(2, restart()),

		sequence{name: "restart", sockets: []string{"a.sock", "b.sock", "c.sock"}, rest: 3,
			before: together(appear(0, a), appear(1, failing(b, "GetInfo", fault(0))), appear(2, driver("c")))}.
			plus(3, hangUp(2), restart()).
			plus(2, configure(1, b)).
			plus(8, restart()).
			plus(4, configure(0, versions(a, "1.4.0")), restart()),

		sequence{name: "root removed", sockets: one, rest: 3, before: appear(0, a)}.
			plus(2, remove("")).
			plus(4, append([]action{makeDirectory("")}, replace(0))...).
			plus(5, restart()),

		sequence{name: "dead socket", sockets: two, rest: 4, before: appear(0, a)}.
			plus(2, append(appear(1, b), hangUp(1))...).
			plus(8, replace(0)).
			plus(6, unlink(1)),

		sequence{name: "comes back within the dial", sockets: one, rest: 9, before: append(appear(0, a), hangUp(0))}.
			plus(3, replace(0)),

		sequence{name: "back before a pass", sockets: one, rest: 4, before: appear(0, a)}.
			plus(2, unlink(0), publish(0)).
			plus(4, replace(0), replace(0)),

		sequence{name: "inherited backoff", sockets: one, rest: 5,
			before: appear(0, failing(a, "GetInfo", fault(4)))}.
			plus(8, replace(0)).
			plus(9, configure(0, failing(a, "GetInfo", fault(1))), replace(0)),
	}
}
