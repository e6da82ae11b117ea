import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** Writes and reads, and prints when (us): `produced client value`, `acknowledged value partition offset`, `received
 * group value partition offset`. Arguments: bootstrap servers, topic, its partitions, seconds. */
public class Stamps {
    static String servers, topic;
    static int partitions;
    static long until;

    /** Polls in vain after the end that a reader without a record waits for its first: share groups are slow to start. */
    static final long PATIENCE = 60;

    /** Rounds that a writer writes at least: where the machine is busy, the time is over when it begins. */
    static final int ROUNDS = 25;

    static long now() {
        Instant now = Instant.now();
        return now.getEpochSecond() * 1_000_000 + now.getNano() / 1000;
    }

    static void say(Object... words) {
        StringBuilder line = new StringBuilder();
        for (Object word : words) line.append(word).append('\t');
        synchronized (System.out) {
            System.out.println(line);
        }
    }

    static boolean goesOn() {
        return System.currentTimeMillis() < until;
    }

    static void write(String client, Map<String, Object> more) throws Exception {
        Map<String, Object> settings = new HashMap<>(more);
        settings.putAll(Map.of("bootstrap.servers", servers, "client.id", client, "linger.ms", 5));
        boolean transactional = more.containsKey("transactional.id");
        Random random = new Random(client.hashCode());
        int number = 0;
        try (KafkaProducer<String, String> producer =
                new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            if (transactional) producer.initTransactions();
            for (int round = 0; goesOn() || round < ROUNDS; round++) {
                if (transactional) producer.beginTransaction();
                for (int count = 1 + random.nextInt(30); count > 0; count--) {
                    String value = client + " " + number++;
                    say("produced", client, value, now());
                    producer.send(new ProducerRecord<>(topic, random.nextInt(partitions), null, value), (at, error) -> {
                        boolean isKnown = error == null && at.hasOffset(); // not with acks=0
                        if (isKnown) say("acknowledged", value, at.partition(), at.offset(), now());
                    });
                }
                if (transactional && random.nextInt(5) == 0) producer.abortTransaction();
                else if (transactional) producer.commitTransaction();
                Thread.sleep(10 + random.nextInt(150));
            }
        }
    }

    static long tell(String group, ConsumerRecords<String, String> records, long quiet) {
        long now = now();
        for (ConsumerRecord<String, String> record : records)
            say("received", group, record.value(), record.partition(), record.offset(), now);
        if (!records.isEmpty()) return 0;
        return goesOn() ? quiet : quiet + 1;
    }

    static Map<String, Object> reading(String group, Map<String, Object> more) {
        Map<String, Object> settings = new HashMap<>(more);
        settings.putAll(Map.of("bootstrap.servers", servers, "client.id", "c-" + group, "group.id", group));
        return settings;
    }

    static void read(String group, Map<String, Object> more) {
        Map<String, Object> settings = reading(group, more);
        settings.put("auto.offset.reset", "earliest");
        try (KafkaConsumer<String, String> consumer =
                new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(topic));
            for (long quiet = -PATIENCE; quiet < 6; ) quiet = tell(group, consumer.poll(Duration.ofMillis(500)), quiet);
        }
    }

    static void share(String group) throws Exception {
        ConfigResource of = new ConfigResource(ConfigResource.Type.GROUP, group);
        ConfigEntry earliest = new ConfigEntry("share.auto.offset.reset", "earliest");
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", servers))) {
            AlterConfigOp set = new AlterConfigOp(earliest, AlterConfigOp.OpType.SET);
            admin.incrementalAlterConfigs(Map.of(of, List.of(set))).all().get(60, TimeUnit.SECONDS);
        }
        try (KafkaShareConsumer<String, String> consumer = new KafkaShareConsumer<>(
                reading(group, Map.of()), new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(topic));
            for (long quiet = -PATIENCE; quiet < 6; ) quiet = tell(group, consumer.poll(Duration.ofMillis(500)), quiet);
        }
    }

    interface Work {
        void run() throws Exception;
    }

    public static void main(String[] arguments) throws Exception {
        servers = arguments[0];
        topic = arguments[1];
        partitions = Integer.parseInt(arguments[2]);
        until = System.currentTimeMillis() + (long) (1000 * Double.parseDouble(arguments[3]));
        List<Work> works = List.of(
            () -> write("j-acks-0", Map.of("acks", "0", "enable.idempotence", false)),
            () -> write("j-acks-1", Map.of("acks", "1", "enable.idempotence", false, "compression.type", "lz4")),
            () -> write("j-idempotent", Map.of("acks", "all", "compression.type", "zstd")),
            () -> write("j-transactional", Map.of("transactional.id", "j-transactional")),
            () -> read("j-classic", Map.of("group.protocol", "classic", "isolation.level", "read_committed")),
            () -> read("j-848", Map.of("group.protocol", "consumer")),
            () -> share("j-share"));
        List<Throwable> failures = new ArrayList<>();
        List<Thread> threads = new ArrayList<>();
        for (Work work : works) {
            Thread thread = new Thread(() -> {
                try {
                    work.run();
                } catch (Throwable failure) {
                    failure.printStackTrace();
                    failures.add(failure);
                }
            });
            thread.start();
            threads.add(thread);
        }
        for (Thread thread : threads) thread.join();
        System.exit(failures.isEmpty() ? 0 : 1);
    }
}
