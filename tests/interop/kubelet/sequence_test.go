package kubelet

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"interop/harness"
	"interop/harness/fakeplugin"
	"interop/kubelet/common/protocol"
)

// A sequence runs in real time, by the reconciler's beat: it makes a pass at once and then one a second. Plugins answer some
// tenths of a second after a pass, each at a time of its own, and what a sequence does comes late in the second. So neither
// the order of things nor the pass that finds a backoff over depends on who is faster by milliseconds.
const (
	beat = time.Second
	// phase is when in a second steps are done.
	phase = 800 * time.Millisecond
	// firstConnect is when the first plugin serves a connection, in milliseconds; each next one comes spacing later. It is not
	// GetInfo that waits: its limit of a second would end with a pass.
	firstConnect, spacing = 150, 80
	// answer is how long the other answers take, in milliseconds.
	answer = 40
	// sliding is the part of the time by which the passes drift, each by its own length and a timer's slack.
	sliding = 250
	// early is how much sooner than the one before it a pass may be told of.
	early = 20 * time.Millisecond
	// late is how far behind its time a step or a pass may be, for all this to hold.
	late = 60 * time.Millisecond
)

// sequence is what happens around a kubelet.
type sequence struct {
	name string
	// sockets are the plugins' registration sockets, below the registration directory.
	sockets []string
	// before is done while no kubelet runs.
	before []action
	steps  []step
	// rest is how many seconds are left after the last step.
	rest int
}

// step is done together, the given number of seconds after the step before it, or after the kubelet's start.
type step struct {
	wait    int
	actions []action
}

// action is one thing that is done.
type action struct {
	what string
	do   func(*testing.T, *world)
}

func (s sequence) plus(wait int, actions ...action) sequence {
	s.steps = append(slices.Clone(s.steps), step{wait, actions})
	return s
}

// starter is startKubelet or startManager.
type starter func(*testing.T, *harness.Node, release) *life

// world is a node with its plugins and the kubelets that it has had.
type world struct {
	*harness.Node
	release release
	start   starter
	plugins []fakeplugin.Plugin
	lives   []*life
	// steps are the times at which they were done.
	steps []time.Time
	// due is when the step that is being done was to begin.
	due time.Time
	// disturbed tells what was late.
	disturbed []string
	// end is when the kubelet was asked to stop: what it may still do is no matter.
	end time.Time
	// looks are before each step and at the end.
	looks []look
}

// look is what is desired and registered at a time.
type look struct {
	at              time.Time
	desired, actual []string
}

// run returns what is to be compared, and what was late.
func (s sequence) run(t *testing.T, release release, start starter) (trace, []string) {
	w := &world{Node: harness.NewNode(t), release: release, start: start}
	for number, socket := range s.sockets {
		driver := filepath.Join(w.Root, "plugins", fmt.Sprint(number), "csi.sock")
		if err := os.MkdirAll(filepath.Dir(driver), 0o750); err != nil {
			t.Fatal(err)
		}
		w.plugins = append(w.plugins, fakeplugin.Start(t, w.Root, *fakePluginBin, w.path(socket), driver))
	}
	for _, action := range s.before {
		action.do(t, w)
	}
	w.startKubelet(t)
	seconds := 0
	for _, step := range s.steps {
		seconds += step.wait
		w.await(seconds)
		w.look(t)
		w.steps = append(w.steps, time.Now())
		before := w.kubelet()
		for _, action := range step.actions {
			action.do(t, w)
			if w.kubelet() != before {
				seconds = 0
			}
		}
	}
	w.await(seconds + s.rest)
	w.look(t)
	w.end = time.Now()
	w.kubelet().stop(t)
	w.checkPasses()
	return w.trace(s), w.disturbed
}

func (w *world) path(socket string) string { return filepath.Join(w.RegistrationDir, socket) }

func (w *world) kubelet() *life { return w.lives[len(w.lives)-1] }

func (w *world) startKubelet(t *testing.T) {
	t.Helper()
	life := w.start(t, w.Node, w.release)
	for _, event := range life.events() {
		if event.Event == protocol.ManagerStarted {
			life.began = event.at
		}
	}
	w.lives = append(w.lives, life)
}

// await returns late in the given second since the kubelet's start, by its own passes, which drift: an operation starts with
// a pass.
func (w *world) await(seconds int) {
	life := w.kubelet()
	var drift time.Duration
	for _, event := range life.events() {
		if event.Event == protocol.OperationStarted {
			drift = event.at.Sub(life.began) % beat
		}
	}
	w.due = life.began.Add(time.Duration(seconds)*beat + drift + phase)
	time.Sleep(time.Until(w.due))
}

// inTime is called after something that was due.
func (w *world) inTime(what string, behind time.Duration) {
	if behind > late {
		w.disturbed = append(w.disturbed, fmt.Sprintf("%s was %s late", what, behind.Round(time.Millisecond)))
	}
}

// checkPasses tells whether the kubelets kept their beat, and whether the plugins were there when they were asked.
func (w *world) checkPasses() {
	var passes []time.Time
	for _, life := range w.lives {
		var last, drift time.Duration
		for _, event := range life.events() {
			if event.Event != protocol.OperationStarted {
				continue
			}
			after := event.at.Sub(life.began)
			w.inTime(fmt.Sprintf("the pass at %.3f s", after.Seconds()), (after-drift+early)%beat-early-(after-last)/sliding)
			last, drift = after, after%beat
			passes = append(passes, event.at)
		}
	}
	for number, plugin := range w.plugins {
		for _, event := range plugin.Events() {
			at := parseTime(event.At)
			pass, _ := slices.BinarySearchFunc(passes, at, time.Time.Compare)
			if event.Event != protocol.Called || event.Method != "GetInfo" || pass == 0 {
				continue
			}
			// Who is dialled for longer is no matter here.
			if asked := at.Sub(passes[pass-1]); asked < beat {
				w.inTime(fmt.Sprintf("plugin %d at %s", number, event.At), asked-connectDelay(number))
			}
		}
	}
}

// connectDelay is how long the plugin lets a connection wait.
func connectDelay(plugin int) time.Duration {
	return time.Duration(firstConnect+plugin*spacing) * time.Millisecond
}

func parseTime(text string) time.Time {
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		panic(err) // The format is fixed.
	}
	return at
}

func (w *world) look(t *testing.T) {
	t.Helper()
	desired, actual := w.kubelet().state(t)
	w.looks = append(w.looks, look{time.Now(), desired, actual})
}

func (w *world) do(t *testing.T, plugin int, command protocol.PluginCommand) {
	t.Helper()
	w.plugins[plugin].Do(t, command)
	// What comes before the first kubelet has no time.
	if len(w.lives) > 0 {
		w.inTime(fmt.Sprintf("%d %s", plugin, command.Command), time.Since(w.due))
	}
}

// What can be done.

// restart ends the kubelet as a kill does; the next one finds a cluster without its traces.
func restart() action {
	return action{"restart", func(t *testing.T, w *world) {
		t.Helper()
		w.kubelet().process.Kill(t)
		w.inTime("a restart", time.Since(w.due))
		w.startKubelet(t)
	}}
}

func command(plugin int, name string) action {
	return action{fmt.Sprintf("%d %s", plugin, name), func(t *testing.T, w *world) {
		t.Helper()
		w.do(t, plugin, protocol.PluginCommand{Command: name})
	}}
}

func publish(plugin int) action  { return command(plugin, protocol.Publish) }
func replace(plugin int) action  { return command(plugin, protocol.PublishByRename) }
func unlink(plugin int) action   { return command(plugin, protocol.Unlink) }
func hangUp(plugin int) action   { return command(plugin, protocol.Close) }
func serveCSI(plugin int) action { return command(plugin, protocol.ServeCSI) }
func closeCSI(plugin int) action { return command(plugin, protocol.CloseCSI) }

// configure gives the plugin these settings, and the delays that keep the order.
func configure(plugin int, settings protocol.PluginSettings) action {
	delays := map[string]int{
		protocol.Connect: int(connectDelay(plugin).Milliseconds()), "NodeGetInfo": answer, "NotifyRegistrationStatus": answer,
	}
	maps.Copy(delays, settings.DelaysMS)
	settings.DelaysMS = delays
	settings.Faults = maps.Clone(settings.Faults)
	return action{fmt.Sprintf("%d is %+v", plugin, settings), func(t *testing.T, w *world) {
		t.Helper()
		w.do(t, plugin, protocol.PluginCommand{Command: protocol.Configure, Settings: &settings})
	}}
}

// appear configures, serves and publishes.
func appear(plugin int, settings protocol.PluginSettings) []action {
	return []action{configure(plugin, settings), serveCSI(plugin), replace(plugin)}
}

// file is an action on paths below the registration directory.
func file(what string, do func(path func(string) string) error) action {
	return action{what, func(t *testing.T, w *world) {
		t.Helper()
		if err := do(w.path); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}}
}

func rename(from, to string) action {
	return file("rename "+from+" "+to, func(path func(string) string) error { return os.Rename(path(from), path(to)) })
}

func link(target, name string) action {
	return file("link "+target+" "+name, func(path func(string) string) error { return os.Symlink(path(target), path(name)) })
}

func makeDirectory(name string) action {
	return file("mkdir "+name, func(path func(string) string) error { return os.MkdirAll(path(name), 0o750) })
}

func makeFile(name string) action {
	return file("touch "+name, func(path func(string) string) error { return os.WriteFile(path(name), nil, 0o600) })
}

func remove(name string) action {
	return file("rm -r "+name, func(path func(string) string) error { return os.RemoveAll(path(name)) })
}
