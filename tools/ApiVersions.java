// Prints which API versions a Kafka release has, one API a line: API key, lowest, highest version; tab-separated.
// Run by refresh_releases.py as a single-file program with that release's kafka-clients on the class path. Everything
// is looked up by name: the classes changed over the releases.
import java.lang.reflect.Array;
import java.lang.reflect.Method;

public class ApiVersions {
    public static void main(String[] arguments) throws Exception {
        Class<?> keys = Class.forName("org.apache.kafka.common.protocol.ApiKeys");
        for (Object key : keys.getEnumConstants()) {
            int id = ((Number) keys.getField("id").get(key)).intValue();
            int lowest;
            int highest;
            Method oldest = find(keys, "oldestVersion");
            if (oldest != null) { // 0.11 and newer
                lowest = ((Number) oldest.invoke(key)).intValue();
                // Newer releases know versions that are not stable yet; brokers offer them only when told to.
                Method stable = find(keys, "latestVersion", boolean.class);
                Object latest = stable != null ? stable.invoke(key, false) : find(keys, "latestVersion").invoke(key);
                highest = ((Number) latest).intValue();
            } else { // 0.8 to 0.10: an array of schemas by API key and version, null where there is none
                Object requests = Class.forName("org.apache.kafka.common.protocol.Protocol").getField("REQUESTS").get(null);
                Object schemas = Array.get(requests, id);
                if (schemas == null)
                    continue; // the API has a number and no schema in this release's clients
                lowest = 0;
                while (Array.get(schemas, lowest) == null)
                    lowest++;
                highest = Array.getLength(schemas) - 1;
            }
            if (lowest <= highest) // else the release knows the API's number and has no version of it
                System.out.println(id + "\t" + lowest + "\t" + highest);
        }
    }

    private static Method find(Class<?> in, String name, Class<?>... parameters) {
        try {
            return in.getMethod(name, parameters);
        } catch (NoSuchMethodException absent) {
            return null;
        }
    }
}
