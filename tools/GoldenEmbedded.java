// Prints what Kafka's own code writes in the formats that `analyzer/definitions/embedded.json` has by hand: user data of
// the sticky assignors and of Kafka Streams, and Connect's protocol.
//
//     java -cp 'JARS/*' tools/GoldenEmbedded.java
//
// One line each: definition, version, hex, and as JSON what Kafka's Schema of that format reads from these bytes;
// tab-separated. Connect's begin with the int16 version that is on the wire, the sticky assignors' have none. Of Streams
// there is no Schema: the JSON is what its own classes say after decoding, with defaults for what a version has not;
// partitions of an AssignmentInfo are written as `topic-partition`, in order.
import com.fasterxml.jackson.databind.ObjectMapper;
import java.lang.reflect.Modifier;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collection;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import java.util.UUID;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Assignment;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.StickyAssignor;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.Message;
import org.apache.kafka.common.protocol.types.BoundField;
import org.apache.kafka.common.protocol.types.Schema;
import org.apache.kafka.common.protocol.types.Struct;
import org.apache.kafka.connect.runtime.distributed.ConnectProtocol;
import org.apache.kafka.connect.runtime.distributed.ExtendedAssignment;
import org.apache.kafka.connect.runtime.distributed.ExtendedWorkerState;
import org.apache.kafka.connect.runtime.distributed.IncrementalCooperativeConnectProtocol;
import org.apache.kafka.connect.util.ConnectorTaskId;
import org.apache.kafka.streams.internals.generated.SubscriptionInfoData;
import org.apache.kafka.streams.processor.TaskId;
import org.apache.kafka.streams.processor.assignment.ProcessId;
import org.apache.kafka.streams.processor.internals.assignment.AssignmentInfo;
import org.apache.kafka.streams.processor.internals.assignment.StreamsAssignmentProtocolVersions;
import org.apache.kafka.streams.processor.internals.assignment.SubscriptionInfo;
import org.apache.kafka.streams.state.HostInfo;

public class GoldenEmbedded {
    static String camel(String name) {
        StringBuilder out = new StringBuilder();
        for (String part : name.split("[-_]"))
            out.append(out.length() == 0 ? part : Character.toUpperCase(part.charAt(0)) + part.substring(1));
        return out.toString();
    }

    static Object json(Object value) {
        if (value instanceof Struct struct) {
            Map<String, Object> out = new LinkedHashMap<>();
            for (BoundField field : struct.schema().fields()) out.put(camel(field.def.name), json(struct.get(field)));
            return out;
        }
        if (value instanceof Object[] items) {
            List<Object> out = new ArrayList<>();
            for (Object item : items) out.add(json(item));
            return out;
        }
        if (value instanceof ByteBuffer buffer) {
            byte[] bytes = new byte[buffer.remaining()];
            buffer.duplicate().get(bytes);
            return Base64.getEncoder().encodeToString(bytes);
        }
        return value;
    }

    @SuppressWarnings("unchecked")
    static void print(String name, int version, ByteBuffer written, Schema... schemas) throws Exception {
        byte[] bytes = new byte[written.remaining()];
        written.duplicate().get(bytes);
        ByteBuffer reading = ByteBuffer.wrap(bytes);
        Map<String, Object> read = new LinkedHashMap<>();
        for (Schema schema : schemas) read.putAll((Map<String, Object>) json(schema.read(reading)));
        if (reading.hasRemaining()) throw new IllegalStateException("bytes left over");
        read.remove("version");
        line(name, version, written, read);
    }

    static Schema schema(Class<?> type, String name) throws Exception {
        var field = type.getDeclaredField(name);
        field.setAccessible(true);
        return (Schema) field.get(null);
    }

    static void assignors() throws Exception {
        for (List<TopicPartition> owned : List.of(
                List.<TopicPartition>of(),
                List.of(new TopicPartition("orders", 0), new TopicPartition("orders", 7), new TopicPartition("é漢", 2)))) {
            ConsumerGroupMetadata group = new ConsumerGroupMetadata("g", 5, "m", Optional.empty());
            StickyAssignor sticky = new StickyAssignor();
            sticky.onAssignment(new Assignment(owned), group);
            Schema newer = schema(StickyAssignor.class, "STICKY_ASSIGNOR_USER_DATA_V1");
            Schema older = schema(StickyAssignor.class, "STICKY_ASSIGNOR_USER_DATA_V0");
            ByteBuffer userData = sticky.subscriptionUserData(Set.of("orders"));
            print("StickyAssignorUserData", 1, userData, newer);
            // What clients before 2.3 sent: the same without the generation (KAFKA-7912).
            Struct before = new Struct(older);
            String partitions = "previous_assignment";
            before.set(partitions, newer.read(userData.duplicate()).get(partitions));
            ByteBuffer written = ByteBuffer.allocate(older.sizeOf(before));
            older.write(written, before);
            print("StickyAssignorUserData", 0, written.flip(), older);
            CooperativeStickyAssignor cooperative = new CooperativeStickyAssignor();
            cooperative.onAssignment(new Assignment(owned), group);
            print("CooperativeStickyAssignorUserData", 0, cooperative.subscriptionUserData(Set.of("orders")),
                schema(CooperativeStickyAssignor.class, "COOPERATIVE_STICKY_ASSIGNOR_USER_DATA_V0"));
        }
    }

    static void connect() throws Exception {
        Collection<String> connectors = List.of("source", "sink");
        Collection<ConnectorTaskId> tasks = List.of(new ConnectorTaskId("sink", 0), new ConnectorTaskId("sink", 3));
        Schema header = ConnectProtocol.CONNECT_PROTOCOL_HEADER_SCHEMA;
        print("ConnectProtocolMetadata", 0,
            ConnectProtocol.serializeMetadata(new ConnectProtocol.WorkerState("http://worker-1:8083/", 42)),
            header, ConnectProtocol.CONFIG_STATE_V0);
        print("ConnectProtocolAssignment", 0,
            ConnectProtocol.serializeAssignment(new ConnectProtocol.Assignment(
                (short) 1, "leader", "http://worker-2:8083/", 42, connectors, tasks)),
            header, ConnectProtocol.ASSIGNMENT_V0);
        for (short version = 1; version <= 2; version++) {
            ExtendedAssignment assignment = new ExtendedAssignment(version, (short) 0, "leader",
                "http://worker-2:8083/", 1L << 40, connectors, tasks, List.of("old"),
                List.of(new ConnectorTaskId("old", 1)), 300000);
            for (ExtendedAssignment current : List.of(assignment, ExtendedAssignment.empty()))
                print("ConnectProtocolMetadata", version,
                    IncrementalCooperativeConnectProtocol.serializeMetadata(
                        new ExtendedWorkerState("http://worker-1:8083/", 42, current), version == 2),
                    header, IncrementalCooperativeConnectProtocol.CONFIG_STATE_V1,
                    IncrementalCooperativeConnectProtocol.ALLOCATION_V1);
            print("ConnectProtocolAssignment", version,
                IncrementalCooperativeConnectProtocol.serializeAssignment(assignment, version == 2),
                header, IncrementalCooperativeConnectProtocol.ASSIGNMENT_V1);
        }
    }

    static void line(String name, int version, ByteBuffer written, Object read) throws Exception {
        byte[] bytes = new byte[written.remaining()];
        written.duplicate().get(bytes);
        System.out.println(name + "\t" + version + "\t" + HexFormat.of().formatHex(bytes) + "\t"
            + new ObjectMapper().writeValueAsString(read));
    }

    /** The fields of a generated class, by name. */
    static Object generated(Object value) throws Exception {
        if (value instanceof Uuid id) return id.toString();
        if (value instanceof byte[] bytes) return Base64.getEncoder().encodeToString(bytes);
        if (value instanceof List<?> items) {
            List<Object> out = new ArrayList<>();
            for (Object item : items) out.add(generated(item));
            return out;
        }
        if (!(value instanceof Message)) return value;
        Map<String, Object> out = new LinkedHashMap<>();
        for (var field : value.getClass().getDeclaredFields()) {
            if (Modifier.isStatic(field.getModifiers()) || field.getName().startsWith("_")) continue;
            field.setAccessible(true);
            out.put(field.getName(), generated(field.get(value)));
        }
        return out;
    }

    static List<String> sorted(Collection<TopicPartition> partitions) {
        return partitions.stream().map(TopicPartition::toString).sorted().toList();
    }

    static Map<String, List<String>> byHost(Map<HostInfo, Set<TopicPartition>> partitions) {
        Map<String, List<String>> out = new TreeMap<>();
        partitions.forEach((host, some) -> out.put(host.host() + ":" + host.port(), sorted(some)));
        return out;
    }

    /** In a set whose order does not change from run to run. */
    static Set<TopicPartition> some(String... names) {
        Set<TopicPartition> out = new LinkedHashSet<>();
        for (String name : names) out.add(new TopicPartition(name.split("-")[0], Integer.parseInt(name.split("-")[1])));
        return out;
    }

    static void streams() throws Exception {
        int latest = StreamsAssignmentProtocolVersions.LATEST_SUPPORTED_VERSION;
        ProcessId process = new ProcessId(new UUID(0x0123456789abcdefL, 0xfedcba9876543210L));
        Map<TaskId, Long> sums = new LinkedHashMap<>();
        sums.put(new TaskId(0, 1), -2L);  // Task.LATEST_OFFSET: active
        sums.put(new TaskId(1, 0), 1L << 40);
        sums.put(new TaskId(1, 3), 7L);
        Map<TaskId, Set<TopicPartition>> standby = new LinkedHashMap<>();
        standby.put(new TaskId(1, 2), some("orders-2", "é漢-0"));
        Map<HostInfo, Set<TopicPartition>> hosts = new LinkedHashMap<>();
        hosts.put(new HostInfo("worker-1", 7070), some("orders-0", "é漢-1"));
        hosts.put(new HostInfo("10.0.0.2", 7071), some("orders-1"));
        Map<HostInfo, Set<TopicPartition>> standbyHosts =
            Map.of(new HostInfo("worker-1", 7070), some("later-9"));
        for (int version = 1; version <= latest; version++) {
            for (boolean empty : new boolean[] {true, false}) {
                ByteBuffer written = new SubscriptionInfo(version, latest, process, empty ? null : "worker-1:7070",
                    empty ? Map.of() : sums, (byte) 5, empty ? 0 : 1,
                    empty ? Map.of() : Map.of("zone", "eu-1")).encode();
                line("SubscriptionInfoData", version, written, generated(
                    new SubscriptionInfoData(new ByteBufferAccessor(written.duplicate()), (short) version)));
                List<TaskId> active = new ArrayList<>(empty ? List.of() : List.of(new TaskId(0, 1), new TaskId(2, 0)));
                if (!empty && version >= StreamsAssignmentProtocolVersions.MIN_NAMED_TOPOLOGY_VERSION)
                    active.add(new TaskId(3, 4, "é"));
                AssignmentInfo info = new AssignmentInfo(version, latest, active, empty ? Map.of() : standby,
                    empty ? Map.of() : hosts, empty ? Map.of() : standbyHosts, empty ? 0 : 2);
                if (!empty) info.setNextRebalanceTime(1L << 41);
                ByteBuffer assigned = info.encode();
                AssignmentInfo read = AssignmentInfo.decode(assigned.duplicate());
                Map<String, Object> out = new LinkedHashMap<>();
                out.put("version", read.version());
                out.put("commonlySupportedVersion", read.commonlySupportedVersion());
                out.put("activeTasks", read.activeTasks().stream().map(TaskId::toString).toList());
                Map<String, List<String>> tasks = new TreeMap<>();
                read.standbyTasks().forEach((task, some) -> tasks.put(task.toString(), sorted(some)));
                out.put("standbyTasks", tasks);
                out.put("partitionsByHost", byHost(read.partitionsByHost()));
                out.put("standbyPartitionsByHost", byHost(read.standbyPartitionByHost()));
                out.put("errCode", read.errCode());
                out.put("nextRebalanceMs", read.nextRebalanceMs());
                line("AssignmentInfo", version, assigned, out);
            }
        }
    }

    public static void main(String[] arguments) throws Exception {
        System.setOut(new java.io.PrintStream(new java.io.FileOutputStream(java.io.FileDescriptor.out), true, "UTF-8"));
        assignors();
        connect();
        streams();
    }
}
