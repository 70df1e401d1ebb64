package kubelet

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"

	"google.golang.org/grpc/codes"

	"interop/kubelet/common/protocol"
)

var (
	randomCount = flag.Int("random", 6, "how many random sequences each release gets")
	firstSeed   = flag.Uint64("seed", 1, "the first one's seed; each next one's is one more")
)

func TestDifferentialRandom(t *testing.T) {
	t.Parallel()
	for _, release := range releases {
		for i := range *randomCount {
			s := random(release, *firstSeed+uint64(i))
			t.Run(s.name+"/"+release.name, func(t *testing.T) {
				t.Parallel()
				differs(t, release, s)
			})
		}
	}
}

const (
	// randomSeconds is how long a random sequence goes on, its rest left out.
	randomSeconds = 20
	randomRest    = 4
	// randomDead is after how many seconds there may be sockets without listeners.
	randomDead = 17
)

// random makes a sequence in which things happen one at a time, and which leaves nothing to chance. A kubelet that dials a
// socket without a listener dials again at times that are chance's, and gives up together with a pass: who is dialled so does
// not come back, and the sequence ends before the dial does.
func random(release release, seed uint64) sequence {
	r := &randomizer{Rand: rand.New(rand.NewPCG(seed, 0)), release: release}
	s := sequence{name: fmt.Sprintf("seed %d", seed), sockets: []string{"a.sock", "b.sock"}, rest: randomRest}
	for number := range s.sockets {
		s.before = append(s.before, configure(number, r.settings()), serveCSI(number))
		r.plugins = append(r.plugins, randomPlugin{served: true})
		if r.chance(40) {
			s.before = append(s.before, publish(number))
			r.plugins[number].published = true
		}
	}
	for r.seconds < randomSeconds {
		wait := 1 + r.IntN(4)
		r.seconds += wait
		s = s.plus(wait, r.actions()...)
	}
	return s
}

type randomizer struct {
	*rand.Rand
	release release
	seconds int
	plugins []randomPlugin
}

type randomPlugin struct {
	// published tells that the socket's file is there, served that the driver's is listened at.
	published, served bool
	// gone is a plugin that does nothing more.
	gone bool
}

func (r *randomizer) chance(percent int) bool { return r.IntN(100) < percent }

// pick returns one of them.
func pick[T any](r *randomizer, all ...T) T { return all[r.IntN(len(all))] }

func (r *randomizer) actions() []action {
	if r.chance(8) {
		return []action{restart()}
	}
	number := r.IntN(len(r.plugins))
	plugin := &r.plugins[number]
	again := configure(number, r.settings())
	switch {
	case plugin.gone:
		return nil
	case !plugin.published:
		plugin.published = true
		return []action{again, pick(r, publish, replace)(number)}
	case r.chance(35):
		return []action{again, replace(number)}
	// Before 1.19 a kubelet dials a socket that is removed.
	case r.chance(25) && (r.release.unregisters || r.seconds >= randomDead):
		plugin.published = false
		plugin.gone = !r.release.unregisters
		return []action{unlink(number)}
	case r.chance(20):
		return []action{unlink(number), again, publish(number)}
	case r.chance(20) && plugin.served:
		plugin.served = false
		return []action{closeCSI(number)}
	case !plugin.served:
		plugin.served = true
		return []action{serveCSI(number)}
	case r.chance(30) && r.seconds >= randomDead:
		plugin.gone = true
		return []action{hangUp(number)}
	default:
		return []action{again}
	}
}

// settings are mostly good ones, of one of two drivers.
func (r *randomizer) settings() protocol.PluginSettings {
	s := driver(pick(r, "one.example.com", "two.example.com"))
	s.MaxVolumes = pick[int64](r, 0, 3, 3, 9, 1<<33, -1)
	zone := s.Name + "/zone"
	s.Topology = pick(r, nil, map[string]string{zone: "1"}, map[string]string{zone: "1"}, map[string]string{zone: "2"})
	if r.chance(15) {
		s.NodeID = pick(r, "other", "other", "")
	}
	if r.chance(35) {
		s.Versions = pick(r, []string{"1.1.0"}, []string{"v1.2.3-beta", "0.1.0"}, []string{}, []string{"0.3.0"}, []string{"2.0.0", "1.0.1"}, []string{"boo"})
	}
	if r.chance(7) {
		s.Type = "DevicePlugin"
	}
	if r.chance(5) {
		s.Endpoint = new(string)
	}
	if r.chance(40) {
		s.Faults = r.faults()
	}
	return s
}

func (r *randomizer) faults() map[string]protocol.Fault {
	method := pick(r, "GetInfo", "NodeGetInfo", "NotifyRegistrationStatus")
	fault := protocol.Fault{Times: r.IntN(3)}
	if r.chance(60) {
		fault.Code = uint32(pick(r, codes.Internal, codes.Unavailable, codes.Unimplemented, codes.ResourceExhausted))
		fault.Message = "fault"
	} else {
		// Beyond the second for GetInfo and the 5 s for a notification, well within the 2 min for NodeGetInfo.
		fault.DelayMS = map[string]int{"GetInfo": 1500, "NodeGetInfo": 2000, "NotifyRegistrationStatus": 6000}[method]
	}
	return map[string]protocol.Fault{method: fault}
}
